"""Finds the response class of a kafka-python request class."""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any


@cache
def response_class(request_type: Any) -> Any:
    """``MetadataRequest`` -> ``MetadataResponse``, from the module that defines the request."""
    name = request_type.__name__.split("_v")[0].removesuffix("Request") + "Response"
    return getattr(importlib.import_module(request_type.__module__), name)
