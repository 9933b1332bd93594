"""Packages that a library imports early are imported at their first use, and then behave as ever."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from swarm.deferred_imports import deferred

DEFERRED = "slow_package"
USER = "package_that_uses_it"
SLOW = """
print("imported")
VALUE = [3]
class Animal: pass
def double(x): return 2 * x
"""
USING = """
import slow_package
import slow_package.below.deepest
from slow_package import VALUE, Animal, double
from slow_package import below
from slow_package.below.deepest import SlowError
def annotated(animal: Animal | None) -> "None | Animal": return None
optional = Animal | None
"""
USING_AT_ONCE = """
from slow_package import Animal
class Cat(Animal): pass
import slow_package
"""


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A module that was imported while the package that it uses was deferred."""
    package = tmp_path / DEFERRED
    (package / "below").mkdir(parents=True)
    (package / "__init__.py").write_text(SLOW)
    (package / "below" / "__init__.py").write_text("")
    (package / "below" / "deepest.py").write_text("class SlowError(Exception): pass\nclass Deepest: pass")
    (tmp_path / f"{USER}.py").write_text(USING)
    monkeypatch.syspath_prepend(str(tmp_path))
    with deferred([DEFERRED]):
        import package_that_uses_it as using  # type: ignore[import-not-found]
    yield using
    for name in [name for name in sys.modules if name.startswith((DEFERRED, USER))]:
        del sys.modules[name]


def test_deferred_package_is_not_imported_by_the_import_of_what_uses_it(user: Any, capsys) -> None:
    assert not [name for name in sys.modules if name.startswith(DEFERRED)]
    assert capsys.readouterr().out == ""
    assert user.double(4) == 8
    assert capsys.readouterr().out == "imported\n"
    assert user.slow_package.double(5) == 10
    assert capsys.readouterr().out == "", "once"


def test_names_of_a_deferred_package_behave_like_what_they_stand_for(user: Any) -> None:
    class Cat(user.Animal):  # type: ignore[misc]
        pass

    import slow_package as real  # type: ignore[import-not-found]

    assert issubclass(Cat, real.Animal) and isinstance(Cat(), user.Animal) and issubclass(Cat, user.Animal)
    assert not isinstance(3, user.Animal) and type(user.Animal()) is real.Animal
    assert user.VALUE[0] == 3
    assert user.below.deepest.Deepest is user.slow_package.below.deepest.Deepest
    with pytest.raises(user.slow_package.below.deepest.SlowError):
        raise user.SlowError()
    with pytest.raises(AttributeError):
        _ = user.slow_package.missing


def test_package_used_while_it_is_deferred_is_imported_then(tmp_path: Path, user: Any, capsys) -> None:
    del sys.modules[USER]
    (tmp_path / f"{USER}.py").write_text(USING_AT_ONCE)
    sys.path_importer_cache.clear()
    with deferred([DEFERRED]):
        import package_that_uses_it as using

        assert capsys.readouterr().out == "imported\n"
    assert issubclass(using.Cat, using.slow_package.Animal)
    assert sys.modules[DEFERRED] is using.slow_package, "from then on it is the real one"


def test_nothing_is_an_instance_of_what_nobody_has_imported_and_nothing_is_imported_to_find_out(
    user: Any, capsys
) -> None:
    class Animal:
        """One of the same name."""

    assert not isinstance(3, user.Animal)
    assert capsys.readouterr().out == ""
    assert not isinstance(Animal(), user.Animal)
    assert capsys.readouterr().out == "imported\n", "only the real one can tell"


def test_decorator_that_is_deferred_is_replaced_within_the_block(tmp_path: Path, user: Any, capsys) -> None:
    del sys.modules[USER]
    (tmp_path / f"{USER}.py").write_text("import slow_package\n@slow_package.double\ndef four(): return 4")
    sys.path_importer_cache.clear()
    with deferred([DEFERRED], {f"{DEFERRED}.double": lambda function: function}):
        import package_that_uses_it as using
    assert using.four() == 4 and capsys.readouterr().out == ""
    assert using.slow_package.double(5) == 10, "and not outside of it"


def test_package_that_is_imported_already_stays_as_it_is(user: Any) -> None:
    import slow_package as real

    with deferred([DEFERRED]):
        import slow_package as again
    assert again is real


HOST_IN_USE = """
import trio
from protocol.identity import NodeKey
from swarm.host import GossipVerdict
from swarm.hosts.libp2p import RARELY_USED
from swarm.hosts.libp2p.libp2p_host import Libp2pHost
from tests.deferred_names import imported_after_all

async def main():
    one, two = (Libp2pHost(NodeKey.generate(), ["/ip4/127.0.0.1/tcp/0"]) for _ in range(2))
    heard = trio.Event()
    async with one.run(), two.run():
        async def echo(stream):
            await stream.send(await stream.receive(10))
            await stream.finish(linger_seconds=1)
        one.handle("/echo/1", echo)
        await one.subscribe("topic", lambda *_: GossipVerdict.ACCEPT, lambda *_: heard.set())
        await two.subscribe("topic", lambda *_: GossipVerdict.ACCEPT, lambda *_: None)
        one.serve_as_relay(lambda peer: True)
        peer = await two.connect(one.addresses()[0], deadline_seconds=30)
        await two.reserve(peer, deadline_seconds=30)
        stream = await two.open_stream(peer, "/echo/1", deadline_seconds=30)
        await stream.send(b"ten bytes.")
        print(await stream.receive(10), await stream.receive(10))
        await two.provide(b"key", deadline_seconds=30)
        while not heard.is_set():
            await two.publish("topic", b"message")
            await trio.sleep(0.2)

trio.run(main)
print(imported_after_all(RARELY_USED))
"""


@pytest.mark.processes
def test_host_in_use_imports_nothing_of_what_is_rarely_used_and_none_of_it_is_caught() -> None:
    said = subprocess.run([sys.executable, "-c", HOST_IN_USE], capture_output=True, text=True, timeout=60)
    assert said.stdout == "b'ten bytes.' b''\n[]\n", said.stderr
