"""Compile every header alone: headers.py ROOT BUILD. Flags come from the build's compile_commands.json."""
import concurrent.futures
import json
import os
import pathlib
import shlex
import subprocess
import sys

root, build = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
commands = {}
for entry in json.loads((build / "compile_commands.json").read_text()):
    source = (pathlib.Path(entry["directory"]) / entry["file"]).resolve()
    # Device code is read with the emulation's headers, by the C++ compiler.
    if source.parent not in commands or "-DHET_CUDA=" in entry["command"]:
        commands[source.parent] = entry["command"]


def check(header):
    command = next((commands[folder] for folder in (header.parent, *header.parents) if folder in commands),
                   next(iter(commands.values())))
    words = [word for word in shlex.split(command) if word.startswith(("-I", "-D", "-std", "-f", "-march", "-m"))]
    words = [word for word in words if not word.startswith("-fdiagnostics")]
    result = subprocess.run(["c++", "-fsyntax-only", "-x", "c++", *words, f"-I{root}", str(header)], cwd=build,
                            capture_output=True, text=True, check=False)
    return header, result


headers = [path for folder in ("core", "kernels", "planner", "lua") for path in sorted((root / folder).rglob("*.h"))]
failed = 0
with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
    for header, result in pool.map(check, headers):
        if result.returncode:
            failed += 1
            print(f"{header.relative_to(root)} does not compile alone:\n{result.stderr}")
sys.exit(1 if failed else 0)
