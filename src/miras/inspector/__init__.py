"""What a model's memories do while they read a text: numbers, and one page that a browser shows offline."""

from .walk import Band, LayerTrace, walk

__all__ = ["Band", "LayerTrace", "walk"]
