"""Count the cases in Meson's JUnit log and print one closing line: summary.py LOG."""
import pathlib
import re
import sys
import xml.etree.ElementTree as xml

# What a test wrote in colours, Meson hands on as it is, and XML forbids.
log = re.sub(r"[\x00-\x08\x0b\x0c\x0e-\x1f]", "", pathlib.Path(sys.argv[1]).read_text(errors="replace"))

passed = failed = skipped = 0
for case in xml.fromstring(log).iter("testcase"):
    if case.find("skipped") is not None:
        skipped += 1
    elif case.find("failure") is not None or case.find("error") is not None:
        failed += 1
    else:
        passed += 1
print(f"{passed} passed, {failed} failed, {skipped} skipped")
