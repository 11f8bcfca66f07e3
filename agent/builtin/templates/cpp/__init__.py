"""What a C++ candidate is rendered from."""
