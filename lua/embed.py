"""Write the Lua files of the het library as one C++ table: embed.py OUTPUT ROOT FILE..."""
import os
import sys


def literal(data):
    """A string literal of C++, a line for each line: compilers read it much faster than a list of numbers."""
    lines = []
    for line in data.splitlines(keepends=True) or [b""]:
        words = "".join(chr(b) if 32 <= b < 127 and chr(b) not in '"\\?' else f"\\{b:03o}" for b in line)
        lines.append(f'"{words}"')
    return "\n".join(lines)


output, root, files = sys.argv[1], sys.argv[2], sorted(sys.argv[3:])
with open(output, "w", encoding="utf-8") as out:
    out.write('#include "lua/state.h"\n\nnamespace het::lua {\nnamespace {\n')
    rows = []
    for number, path in enumerate(files):
        with open(path, "rb") as source:
            data = source.read()
        name = os.path.relpath(path, root)[:-4].replace(os.sep, ".")
        name = name.removesuffix(".init")
        out.write(f"const char text{number}[] =\n{literal(data)};\n")
        rows.append(f'{{"{name}", text{number}, {len(data)}}}')
    out.write("}  // namespace\n\nconst std::vector<Module>& embedded_modules() {\n")
    out.write("  static const std::vector<Module> modules{%s};\n  return modules;\n}\n" % ", ".join(rows))
    out.write("}  // namespace het::lua\n")
