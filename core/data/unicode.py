"""Writes unicode_tables.h: categories, canonical and compatible forms and lower case of the Unicode version that this Python knows.

usage: python3 core/data/unicode.py > core/data/unicode_tables.h
"""

import sys
import unicodedata

CATEGORIES = ['Lu', 'Ll', 'Lt', 'Lm', 'Lo', 'Mn', 'Mc', 'Me', 'Nd', 'Nl', 'No', 'Pc', 'Pd', 'Ps', 'Pe', 'Pi', 'Pf', 'Po', 'Sm',
              'Sc', 'Sk', 'So', 'Zs', 'Zl', 'Zp', 'Cc', 'Cf', 'Cs', 'Co', 'Cn']


def ranges(value_of):
    """Inclusive ranges (first, last, value) of the code points that have equal values other than 0."""
    found, first, value = [], 0, 0
    for c in range(0x110001):
        here = value_of(c) if c < 0x110000 else 0
        if here != value:
            if value:
                found.append((first, c - 1, value))
            first, value = c, here
    return found


def lines(entries):
    text, line = '', '   '
    for entry in entries:
        if len(line) + len(entry) > 109:
            text, line = text + line + '\n', '   '
        line += ' ' + entry
    return text + line + '\n'


def decomposition(c):
    """The code points of one canonical step, or None."""
    words = unicodedata.decomposition(chr(c)).split()
    if not words or words[0].startswith('<') or 0xAC00 <= c <= 0xD7A3:
        return None
    return [int(word, 16) for word in words]


def compatible():
    """By code point that has a compatible decomposition: all of it, as code points."""
    return {c: [ord(part) for part in unicodedata.normalize('NFKD', chr(c))] for c in range(0x110000)
            if unicodedata.decomposition(chr(c)).startswith('<')}


def lower_cases():
    """Runs (first, last, step, difference) of code points that have one other as their lower case."""
    runs = []
    for c in range(0x110000):
        lower = chr(c).lower()
        if lower == chr(c) or len(lower) > 1:
            continue
        difference = ord(lower) - c
        if runs:
            first, last, step, same = runs[-1]
            gap = c - last
            if difference == same and gap <= 2 and (step == gap or first == last):
                runs[-1] = (first, c, gap, same)
                continue
        runs.append((c, c, 1, difference))
    return runs


def main():
    categories = lines(f'{{0x{first:X}, 0x{last:X}, {value - 1}}},' for first, last, value in ranges(
        lambda c: 0 if unicodedata.category(chr(c)) == 'Cn' else CATEGORIES.index(unicodedata.category(chr(c))) + 1))
    classes = lines(f'{{0x{first:X}, 0x{last:X}, {value}}},' for first, last, value in ranges(
        lambda c: unicodedata.combining(chr(c))))
    steps = []
    for c in range(0x110000):
        parts = decomposition(c)
        if parts:
            composes = len(parts) == 2 and unicodedata.normalize('NFC', ''.join(map(chr, parts))) == chr(c)
            steps.append(f'{{0x{c:X}, 0x{parts[0]:X}, 0x{parts[1] if len(parts) > 1 else 0:X}, '
                         f'{"true" if composes else "false"}}},')
    forms, parts_of_all = [], []
    for c, parts in compatible().items():
        forms.append(f'{{0x{c:X}, {len(parts_of_all)}, {len(parts)}}},')
        parts_of_all += [f'0x{part:X},' for part in parts]
    sys.stdout.write(TEMPLATE % {'version': unicodedata.unidata_version, 'categories': categories, 'classes': classes,
                                 'steps': lines(steps), 'forms': lines(forms), 'parts': lines(parts_of_all), 'lower': lines(
                                     f'{{0x{first:X}, 0x{last:X}, {step}, {difference}}},' for first, last, step, difference in lower_cases())})


TEMPLATE = '''// Unicode %(version)s: general categories, canonical combining classes, canonical and compatible decompositions and
// lower case, ascending.
// Written by unicode.py.
#pragma once

#include <cstdint>

namespace het::unicode {

struct Range {
  char32_t first, last;
  uint8_t value;
};

// One step of a canonical decomposition; `composes`: NFC makes `whole` of the two again.
struct Step {
  char32_t whole, first, second;  // second 0: a single one
  bool composes;
};

// A compatible decomposition: kCompatibleParts from `first` on.
struct Compatible {
  char32_t whole;
  uint16_t first, count;
};

// Every `step`-th code point of these has the one `difference` after it as its lower case.
struct Lower {
  char32_t first, last, step;
  int32_t difference;
};

// clang-format off
inline constexpr Range kCategories[] = {  // others: unassigned
%(categories)s};
inline constexpr Range kCombiningClasses[] = {  // others: 0
%(classes)s};
inline constexpr Step kSteps[] = {
%(steps)s};
inline constexpr Compatible kCompatible[] = {
%(forms)s};
inline constexpr char32_t kCompatibleParts[] = {
%(parts)s};
inline constexpr Lower kLower[] = {
%(lower)s};
// clang-format on

}  // namespace het::unicode
'''

if __name__ == '__main__':
    main()
