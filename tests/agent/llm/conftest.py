from endpoint import endpoint

__all__ = ["endpoint"]
