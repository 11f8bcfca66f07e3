"""What the hardware did: metrics with unit and provenance, rooflines, measured ceilings."""
