"""Layers cut over ranks by DTensor give what whole layers give."""
