"""No branch on an operator's name outside core/ops, kernels and tests: what code has to know of an operator is a field
of OpDef (core/ops/op.h).

Refused are comparisons of a name or op with the name of an operator ("linear"), comparisons and look-ups of op->name,
and comparisons with op_named(...); in Lua, comparisons of a field `op` with an operator's name. Code may call
op_named("add") to make a node. Names are read from core/ops: `.name = "..."`, and the first argument of functions that
make an OpDef.

usage: operator_names.py ROOT
Prints each branch; exit code 1 when there is one.
"""
import re
import sys

from report import main

FOLDERS = ("core", "planner", "snapshot", "lua")
COMMENT_OR_STRING = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.DOTALL)


def operator_names(source):
    """The operators that a file of core/ops defines."""
    names = set(re.findall(r'\.name = "(\w+)"', source))
    for function in re.findall(r"\bOpDef (\w+)\(std::string_view name\b", source):
        names.update(re.findall(rf'\b{function}\(\s*"(\w+)"', source))
    return names


def without_comments(source):
    """The same text, in which comments are blank; lines keep their numbers."""
    def blank(found):
        return found.group() if found.group().startswith('"') else re.sub(r"[^\n]", " ", found.group())
    return COMMENT_OR_STRING.sub(blank, source)


def cpp_patterns(names):
    literal = rf'"(?:{"|".join(sorted(names))})"(?:sv)?(?!\w)'
    named = r"\b(?:\w+_)?(?:name|op|operator|operation)(?:\(\))?"   # other words may well be "sum" or "copy"
    name = r"\bop(?:\(\))?(?:->|\.)name\b"
    return [
        re.compile(rf"{named}\s*[=!]=\s*{literal}|{literal}\s*[=!]=\s*[\w.\[\]()>-]*?{named}(?!\w)"),
        re.compile(rf"{name}\s*(?:[=!<>]=|<|>|\.\s*(?:compare|starts_with|ends_with|r?find|substr)\b)"),
        re.compile(rf"[=!<>]=\s*[\w.\[\]()>-]*?{name}"),
        re.compile(rf"\b(?:at|count|find|contains)\((?:[^();]|\(\))*{name}\s*\)"),
        re.compile(r"[=!]=\s*&?\s*(?:\w+::)*op_named\(|\bop_named\([^()]*\)\s*[=!]="),
    ]


def lua_patterns(names):
    literal = rf'["\'](?:{"|".join(sorted(names))})["\']'
    return [re.compile(rf"\.op(?:\.name)?\s*[=~]=\s*{literal}|{literal}\s*[=~]=\s*[\w.]*\.op\b")]


def branches(text, patterns):
    """Numbers of the lines on which a branch begins."""
    return sorted({text.count("\n", 0, found.start()) + 1 for pattern in patterns for found in pattern.finditer(text)})


def problems_of(root):
    names = set()
    for path in sorted((root / "core" / "ops").glob("*.cpp")):
        names |= operator_names(path.read_text(encoding="utf-8"))
    if not {"linear", "add", "sum"} <= names:
        yield f"core/ops: only {len(names)} names of operators were found; this check no longer reads them"
        return
    of_cpp, of_lua = cpp_patterns(names), lua_patterns(names)
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            file = path.relative_to(root).as_posix()
            if path.suffix not in (".cpp", ".h", ".lua") or file.startswith("core/ops/"):
                continue
            source = path.read_text(encoding="utf-8")
            lua = path.suffix == ".lua"
            text = source if lua else without_comments(source)
            for number in branches(text, of_lua if lua else of_cpp):
                yield (f"{file}:{number}: branches on an operator's name: {source.splitlines()[number - 1].strip()}; "
                       "make it a field of OpDef, set in core/ops")


def check_itself():
    """The branches that it has to find, and what it has to let pass."""
    names = operator_names('{.name = "linear", .doc = "x"}\nOpDef unary(std::string_view name, Rule r) {\n'
                           'ops.push_back(unary(\n    "gelu", "doc"));\nother("relu");')
    assert names == {"linear", "gelu"}, names
    refused = [
        'if (node.op->name == "linear")',
        'node.op->name ==\n    "other"',
        'if (name != "gelu") return;',
        'return "gelu" == name;',
        'op_name == "gelu"sv',
        'if ("linear" != definition.name) return;',
        "a.op->name == b.op->name",
        "if (name == graph.nodes[n].op->name)",
        'op.name.starts_with("lin")',
        "kFloating.count(node.op->name)",
        "std::find(names.begin(), names.end(), op.name) != names.end()",
        'node.op == &op_named("other")',
        "&op_named(name) != node.op",
    ]
    allowed = [
        'node.op = &op_named("linear");',
        'builder.call("gelu", {x});',
        'fmt::format("{} of {}", node.op->name, scope)',
        '// where op->name == "linear" holds',
        'if (a.activation == "gelu_exact")',
        'if (how != "gelu" && how != "max") return;',
        'const char* help = "gelu"; if (a == b) return;',
        "op.elementwise == other.elementwise",
    ]
    patterns = cpp_patterns(names)
    for text in refused:
        assert branches(without_comments(text), patterns) == [1], f"not found: {text}"
    for text in allowed:
        assert not branches(without_comments(text), patterns), f"refused: {text}"
    assert branches('local a = 1\nif span.op == "linear" then', lua_patterns(names)) == [2]
    assert not branches('if a.activation == "gelu" or span.op == "await" then', lua_patterns(names))


if __name__ == "__main__":
    check_itself()
    sys.exit(main(problems_of))
