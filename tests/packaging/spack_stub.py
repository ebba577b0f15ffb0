# Enough of Spack to read one recipe without it: directives are collected, a spec is a set of values for the variants.
import importlib.util
import sys
import types


class Spec:
    def __init__(self, values):
        self.values = values
        self.variants = {name: types.SimpleNamespace(value=value) for name, value in values.items()}

    def satisfies(self, text):
        return all(self.values[part[1:]] is (part[0] == "+") for part in text.split())


class Recipe:
    """Base of CMakePackage here; what a subclass's directives said is in `said`."""

    said = {}
    run_tests = False

    def __init__(self, **values):
        known = dict(self.said["variants"], cuda=False, cuda_arch=("none",))
        assert set(values) <= set(known), f"no such variant: {set(values) - set(known)}"
        self.spec = Spec(known | values)

    def define(self, name, value):
        if isinstance(value, bool):
            return f"-D{name}:BOOL={'ON' if value else 'OFF'}"
        return f"-D{name}:STRING={value}"

    def define_from_variant(self, name, variant):
        return self.define(name, self.spec.values[variant])


def load(path):
    """The class of the recipe at `path`; class.said has its variants (name: default), dependencies and versions."""
    said = {"variants": {}, "depends_on": [], "versions": []}
    package = types.ModuleType("spack.package")
    package.variant = lambda name, default, **rest: said["variants"].update({name: default})
    package.depends_on = lambda spec, **rest: said["depends_on"].append(spec)
    package.version = lambda name, **rest: said["versions"].append(name)
    package.license = package.generator = package.conflicts = lambda *words, **rest: None
    modules = {"spack": types.ModuleType("spack"), "spack.package": package}
    for name in ("spack_repo", "spack_repo.builtin", "spack_repo.builtin.build_systems", "spack_repo.builtin.build_systems.cmake", "spack_repo.builtin.build_systems.cuda"):
        modules[name] = types.ModuleType(name)
    modules["spack_repo.builtin.build_systems.cmake"].CMakePackage = Recipe
    modules["spack_repo.builtin.build_systems.cuda"].CudaPackage = type("CudaPackage", (), {})
    sys.modules.update(modules)
    try:
        spec = importlib.util.spec_from_file_location("thinwire_recipe", path)
        recipe = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(recipe)
    finally:
        for name in modules:
            del sys.modules[name]
    recipe.Thinwire.said = said
    return recipe.Thinwire
