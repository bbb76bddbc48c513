"""Shapes: files taken apart into texts and put together again."""

# each of these registers its shapes
from redactory.pipelines.shapes import documents
from redactory.pipelines.shapes.rows import shape_of
from redactory.pipelines.shapes.shape import SHAPES, Row, Shape

__all__ = ["SHAPES", "Row", "Shape", "documents", "shape_of"]
