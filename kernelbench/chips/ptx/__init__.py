"""PTX of kernels: parsed, walked by single threads without their data, and priced in cycles and sectors."""
