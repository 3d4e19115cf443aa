"""Model code that Transformers doesn't have: imported and run only where the user said that it may be.

That of a repository (`auto_map`) needs consent to run it; naming a class of one's own is consent to run its file.
"""

import importlib
import sys
from collections.abc import Mapping
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from headscope.core.facts import Task
from headscope.core.facts.counting import few_of
from headscope.core.facts.stored.location import Location
from headscope.core.model.classes.catalog import AUTO_CLASS_OF_TASK
from headscope.core.model.quiet import quiet
from headscope.core.upstream.transformers import class_of_repository, config_classes
from headscope.errors import Unsupported, UsageError


def models_in_auto_map(config: Mapping[str, Any]) -> str:
    """Names the model classes in `auto_map`, without running their code; "" where it names none."""
    auto_map = config.get("auto_map")
    named = auto_map.items() if isinstance(auto_map, dict) else ()
    return few_of(sorted({str(value).rpartition(".")[2] for auto, value in named if str(auto).startswith("AutoModel")}))


def load_remote_classes(
    config: dict[str, Any], task: Task | None, source: Location
) -> tuple[type[PreTrainedModel], Task, Any]:
    """Loads the model class that `auto_map` names for `task`, or for the first task that it names.

    Also gives the task and the configuration class. Runs code of the repository. Raises Unsupported where it defines no
    such class or cannot be imported.
    """
    auto_map = config["auto_map"]
    tasks = (task,) if task else tuple(Task)
    found = next((item for item in tasks if isinstance(auto_map.get(AUTO_CLASS_OF_TASK[item]), str)), None)
    own, model_type = auto_map.get("AutoConfig"), config.get("model_type")
    # A class for a configuration of Transformers needs no other.
    known = config_classes()[model_type] if isinstance(model_type, str) and model_type in config_classes() else None
    if found is None or (known is None and not isinstance(own, str)):
        lacking = (
            f"class for {task.value if task else 'a classification task'}"
            if found is None
            else "AutoConfig, which it must name"
        )
        raise Unsupported(
            f"the repository's own code defines no {lacking}",
            f"its auto_map names: {', '.join(sorted(map(str, auto_map)))}",
        )
    config_class = _import_remote_class(own, source) if isinstance(own, str) else known
    return _import_remote_class(auto_map[AUTO_CLASS_OF_TASK[found]], source), found, config_class


def class_of_own_code(named: str) -> type[PreTrainedModel]:
    """Imports the class that `path/to/file.py:Class` or `package.module:Class` names. Runs that code.

    Raises UsageError where there is no such file, module or class, Unsupported where its import fails.
    """
    place, _, name = named.rpartition(":")
    try:
        with quiet():
            module = _import_file(Path(place)) if place.endswith(".py") else _import_module(place)
    except UsageError:
        raise
    except Exception as err:  # whatever foreign code raises
        raise Unsupported(f"{place} cannot be imported: {type(err).__name__}: {err}", "install what it needs") from err
    found = getattr(module, name, None)
    if not (isinstance(found, type) and issubclass(found, PreTrainedModel)):
        raise UsageError(
            f"{place} has no class {name} that is a PreTrainedModel", "name it as FILE.py:CLASS or MODULE:CLASS"
        )
    return found


def _import_file(path: Path) -> Any:
    """Imports a file as a module, once. Like Python's own scripts, it finds the files beside it."""
    if not path.is_file():
        raise UsageError(f"there is no file {path}", "name the file with the class: FILE.py:CLASS")
    path = path.resolve()
    name = f"headscope_own_code_{path.stem}_{abs(hash(path))}"
    if name not in sys.modules:
        spec = spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[name] = module_from_spec(spec)
        sys.path.append(str(path.parent))
        try:
            spec.loader.exec_module(module)
        # An interrupt too: a module that ran only in part must not be found again.
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]


def _import_module(name: str) -> Any:
    """Imports a module by its name."""
    # The current folder comes last, as its files may be named as a library is.
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as err:
        if err.name is not None and not name.startswith(err.name):
            raise
        raise UsageError(f"there is no module {name}", "name it as FILE.py:CLASS or MODULE:CLASS") from err


def _import_remote_class(reference: str, source: Location) -> Any:
    try:
        with quiet():
            return class_of_repository(reference, source.reference, **source.keywords())
    except Exception as err:
        raise Unsupported(
            f"the repository's own class {reference} cannot be imported: {type(err).__name__}: {err}",
            "install what its code needs",
        ) from err
