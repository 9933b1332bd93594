"""Packages that are imported at their first use, however early a library asks for them.

A library imports at its top what some of its parts need, and a process that uses none of these parts pays for them in
memory and time. Within ``deferred`` such packages get stand-ins, and what is imported from them is bound to stand-ins
too. The first use of one (a call, an attribute, a subclass, ``isinstance`` of an object that has a class of the name)
imports the real package, so that nothing is missing and nothing behaves otherwise, only later: as with ``lazy import``
of Python 3.15 (PEP 810). Two things do not work: an ``except`` clause with a class that was imported by its own name
(``from package import Error``), and ``isinstance`` of a protocol that nobody has imported.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any, Union


@contextmanager
def deferred(modules: Iterable[str], instead: Mapping[str, Any] | None = None) -> Iterator[None]:
    """Defers the import of ``modules``, packages with all that is in them, by the imports that it surrounds.

    Modules that are imported already stay as they are. A module that imports one after the block gets the real one.
    ``instead`` has by its full name what is bound, within the block, in the place of a stand-in: of a decorator, which
    a library uses as it is imported.
    """
    finder = _StandInFinder({module for module in modules if module not in sys.modules}, instead or {})
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for root in list(finder.roots):
            finder.give_way(root)


class _StandInFinder(MetaPathFinder, Loader):
    """Finds stand-ins for ``roots`` and what is in them. A root that was used is one no longer."""

    def __init__(self, roots: set[str], instead: Mapping[str, Any]) -> None:
        self.roots, self.instead = roots, instead

    def root_of(self, module: str) -> str | None:
        return next((root for root in self.roots if f"{module}.".startswith(f"{root}.")), None)

    def give_way(self, root: str) -> None:
        """Makes room for the real one."""
        for name in [name for name in sys.modules if self.root_of(name) == root]:
            del sys.modules[name]
        self.roots.discard(root)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, self, is_package=True) if self.root_of(fullname) is not None else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _StandInModule(spec.name, self)

    def exec_module(self, module: ModuleType) -> None:
        """Runs nothing: that is the point."""


class _StandInModule(ModuleType):
    """A deferred module: its names lead to stand-ins until something of its root is used."""

    def __init__(self, name: str, finder: _StandInFinder) -> None:
        super().__init__(name)
        self._finder = finder
        self.__path__: list[str] = []  # the import system asks for these three
        self.__file__ = self.__cached__ = None

    def __getattr__(self, name: str) -> Any:
        if self._finder.root_of(self.__name__) is None:
            return self.real_attribute(name)
        full_name = f"{self.__name__}.{name}"
        return self._finder.instead[full_name] if full_name in self._finder.instead else _StandIn(self, name)

    def real_attribute(self, name: str) -> Any:
        """Imports the module, and the one below it that has the name."""
        root = self._finder.root_of(self.__name__)
        if root is not None:
            self._finder.give_way(root)
        real = import_module(self.__name__)
        below = f"{self.__name__}.{name}"
        if not hasattr(real, name) and not name.startswith("__") and find_spec(below) is not None:
            import_module(below)
        return getattr(real, name)


class _StandIn:
    """Something that was imported by its name from a deferred module."""

    __parameters__: tuple[Any, ...] = ()  # this and the next are asked of every part of an annotation

    def __init__(self, module: _StandInModule, name: str) -> None:
        self._module, self._name = module, name

    @cached_property
    def _real(self) -> Any:
        return self._module.real_attribute(self._name)

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return self._real(*arguments, **options)

    def __getattr__(self, name: str) -> Any:
        if name == "__typing_subst__":
            raise AttributeError(name)
        return getattr(self._real, name)

    def __getitem__(self, key: Any) -> Any:
        return self._real[key]

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[Any, ...]:
        return (self._real,)

    def __instancecheck__(self, instance: object) -> bool:
        """Imports the class only where it may be one of the instance's: otherwise nobody can have made the instance."""
        real = sys.modules.get(self._module.__name__)
        is_imported = real is not None and not isinstance(real, _StandInModule)
        if not is_imported and all(each.__name__ != self._name for each in type(instance).__mro__):
            return False
        return isinstance(instance, self._real)

    def __subclasscheck__(self, subclass: type) -> bool:
        return issubclass(subclass, self._real)

    def __or__(self, other: Any) -> Any:  # in an annotation
        return Union[self, other]  # noqa: UP007

    def __ror__(self, other: Any) -> Any:
        return Union[other, self]  # noqa: UP007
