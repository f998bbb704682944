"""What the checks of this folder share."""
import pathlib
import sys


def main(problems_of):
    """Prints what problems_of(root of the repository) finds; the exit status of a test."""
    found = list(problems_of(pathlib.Path(sys.argv[1])))
    for problem in found:
        print(problem)
    return 1 if found else 0
