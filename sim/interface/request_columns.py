"""Many requests: columns of their fields, and objects where somebody takes one out.

Not here: what a request is (request), the columns that the compiled core changes (sim.run.compiled).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from itertools import compress
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.interface.request import Request

_DEFAULTS = {field.name: field.default for field in fields(Request)}


class Requests(Sequence[Request]):
    """Requests in order of arrival: columns of their fields, until a policy in Python or a reader takes a request out.
    From then on they are objects, which change.

    >>> import numpy as np
    >>> two = Requests({"arrival_s": np.zeros(2), "prompt_tokens": np.array([7, 8]), "output_tokens": np.array([1, 3])})
    >>> two.column("prompt_tokens").tolist(), two[1].output_tokens
    ([7, 8], 3)
    """

    __slots__ = ("_columns", "_contents", "_ids", "_objects")

    def __init__(
        self,
        columns: Mapping[str, NDArray[Any]] | None,
        ids: NDArray[Any] | None = None,
        contents: Sequence[tuple[int, ...]] = (),
        objects: Sequence[Request] = (),
    ) -> None:
        """`columns` [requests] has arrivals and lengths at least; None where there are `objects`. Without `ids`
        requests are numbered; `contents` is empty where nothing is known of any."""
        self._columns, self._ids, self._contents, self._objects = columns, ids, contents, list(objects)

    @classmethod
    def of(cls, requests: Sequence[Request]) -> Requests:
        """The same requests."""
        return requests if isinstance(requests, Requests) else cls(None, objects=requests)

    @property
    def is_table(self) -> bool:
        """Nobody has taken a request out."""
        return self._columns is not None

    @property
    def contents(self) -> Sequence[tuple[int, ...]]:
        """[requests] ids of their blocks; empty where nothing is known of any."""
        return [request.content for request in self._objects] if self._columns is None else self._contents

    def column(self, name: str) -> NDArray[Any]:
        """[requests] of a field."""
        if self._columns is None:
            of = np.float64 if name.endswith("_s") else None
            return np.array([*map(attrgetter(name), self._objects)], of)
        if name in self._columns:
            return self._columns[name]
        if name == "id":
            ids = self.column("index") if self._ids is None else self._ids
            return np.array([*map(str, ids.tolist())], dtype=object)
        return np.arange(len(self)) if name == "index" else np.full(len(self), _DEFAULTS[name])

    def objects(self) -> list[Request]:
        """[requests] objects, the same ones each time."""
        if self._columns is not None:
            names = ("index", "id", "arrival_s", "prompt_tokens", "output_tokens")
            rows = [self.column(name).tolist() for name in names]
            self._objects = [Request(*row) for row in zip(*rows, self._contents or [()] * len(self), strict=True)]
            others = {name: column for name, column in self._columns.items() if name not in names}
            self._columns = None
            self.change(others)
        return self._objects

    def change(self, columns: Mapping[str, NDArray[Any]]) -> None:
        """These fields have these values [requests] now."""
        if self._columns is not None:
            self._columns = {**self._columns, **columns}
            return
        for name, column in columns.items():
            for request, value in zip(self._objects, column.tolist(), strict=True):
                setattr(request, name, value)

    def kept(self, is_kept: NDArray[np.bool_]) -> Requests:
        """Those of the requests that are marked; columns are numbered anew."""
        if self._columns is None:
            return Requests(None, objects=[*compress(self._objects, is_kept.tolist())])
        if is_kept.all():
            return self
        columns = {name: column[is_kept] for name, column in self._columns.items() if name != "index"}
        ids = (self.column("index") if self._ids is None else self._ids)[is_kept]
        return Requests(columns, ids, [*compress(self._contents, is_kept.tolist())])

    def __len__(self) -> int:
        return len(self._objects) if self._columns is None else len(self._columns["arrival_s"])

    def __getitem__(self, place: Any) -> Any:
        """A request, or requests."""
        if not isinstance(place, slice):
            return self.objects()[place]
        indexes = self.column("index")
        part = self.kept(np.isin(indexes, indexes[place]))
        part.change({"index": indexes[place]})
        return part

    def __iter__(self) -> Iterator[Request]:
        return iter(self.objects())
