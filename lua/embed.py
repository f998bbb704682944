"""Write the Lua files of the het library as one C++ table: embed.py OUTPUT ROOT FILE..."""
import os
import sys

output, root, files = sys.argv[1], sys.argv[2], sorted(sys.argv[3:])
with open(output, "w", encoding="utf-8") as out:
    out.write('#include "lua/state.h"\n\nnamespace het::lua {\nnamespace {\n')
    rows = []
    for number, path in enumerate(files):
        with open(path, "rb") as source:
            data = source.read()
        name = os.path.relpath(path, root)[:-4].replace(os.sep, ".")
        name = name.removesuffix(".init")
        out.write(f"const unsigned char text{number}[] = {{{','.join(str(b) for b in data) or '0'}}};\n")
        rows.append(f'{{"{name}", reinterpret_cast<const char*>(text{number}), {len(data)}}}')
    out.write("}  // namespace\n\nconst std::vector<Module>& embedded_modules() {\n")
    out.write("  static const std::vector<Module> modules{%s};\n  return modules;\n}\n" % ", ".join(rows))
    out.write("}  // namespace het::lua\n")
