"""What pydantic says about a wrong key of the spec, in the words of the person who wrote it. Pure; repeats no value."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args, get_origin

from pydantic import BaseModel

#: A key is taken for a misspelt one from this similarity on.
_SIMILAR = 0.6
A_SECTION = "a section with keys is needed: write them below it, further to the right, or remove it"
_TEXTS = {
    "list_type": "a list is needed: [a, b], or one item per line after `- `",
    "string_type": "a text is needed: put quotes round a number, a date or yes and no",
    "missing": "this key is needed",
}


def describe(errors: Sequence[Mapping[str, Any]], kind: type[BaseModel]) -> Iterator[tuple[str, str]]:
    """Return (path, reason) of each mistake, once per path.

    :param errors: ``ValidationError.errors()`` of the model.
    """
    seen = set()
    for item in errors:
        place, model, field = _find(kind, tuple(item["loc"]))
        path = as_path(place)
        is_union = len(place) < len(item["loc"]) and item["type"] != "extra_forbidden"
        is_form = item["type"] == "string_pattern_mismatch" and field is not None and field.description
        reason = field.description if is_union and field is not None else _reason(item, model, kind)
        if is_form:
            pattern = item.get("ctx", {}).get("pattern", "")
            reason = f"not of the form that is needed (pattern {pattern}): {field.description}"
        if (path, reason) not in seen:
            seen.add((path, reason))
            yield path, str(reason)


def as_path(location: tuple[int | str, ...]) -> str:
    """Return a location as people write it: ``topics.include[0]``."""
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else (f".{part}" if text else str(part))
    return text


def _find(kind: type[BaseModel], location: tuple[int | str, ...]) -> tuple[tuple[int | str, ...], Any, Any]:
    """Return the part of a location that people have written, the last section in it, and the last key's field.

    pydantic adds a name for each alternative of a union, which stands nowhere in the spec.
    """
    annotation: Any = kind
    model, field = kind, None
    for index, part in enumerate(location):
        section = _section_of(annotation)
        if section is not None:
            model, field = section, _fields(section).get(str(part))
            annotation = None if field is None else field.annotation
        elif isinstance(part, str) and ("[" in part or part.startswith("constrained")):
            return location[:index], model, field
        elif get_origin(annotation) in (list, dict):
            annotation = get_args(annotation)[-1]
    return location, model, field


def _section_of(annotation: Any) -> type[BaseModel] | None:
    found = [item for item in (annotation, *get_args(annotation)) if isinstance(item, type)]
    is_collection = get_origin(annotation) in (list, dict)
    return next((item for item in found if issubclass(item, BaseModel) and not is_collection), None)


def _fields(model: type[BaseModel]) -> dict[str, Any]:
    return {field.alias or name: field for name, field in model.model_fields.items()}


def _reason(item: Mapping[str, Any], model: type[BaseModel], root: type[BaseModel]) -> str:
    kind = str(item["type"])
    if kind == "extra_forbidden":
        return _unknown(str(item["loc"][-1]), model, root)
    if kind in ("model_type", "dict_type"):
        return A_SECTION
    return _TEXTS.get(kind, str(item["msg"]).removeprefix("Value error, "))


def _unknown(key: str, model: type[BaseModel], root: type[BaseModel]) -> str:
    """Name the key that was meant: the nearest one of the section, or the same one of another section."""
    if key in getattr(model, "retired", ()):
        return f"this key is gone, remove it: {model.retired[key].why}"  # type: ignore[attr-defined]
    here = list(_fields(model))
    near = [name for name in here if key in name.split("_")] or difflib.get_close_matches(
        key, here, n=1, cutoff=_SIMILAR
    )
    elsewhere = [
        f"{name}.{key}"
        for name, field in _fields(root).items()
        if (section := _section_of(field.annotation)) is not None and section is not model and key in _fields(section)
    ]
    if not near and elsewhere:
        return f"there is no such key here; did you mean {' or '.join(elsewhere)}?"
    if near:
        return f"there is no such key here; did you mean {near[0]}?"
    return f"there is no such key here; there are {', '.join(sorted(here))}"
