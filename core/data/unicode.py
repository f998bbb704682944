"""Writes unicode_tables.h: categories, canonical and compatible forms and lower case of the Unicode version that this Python knows.
Forms and marks are those of Unicode 9, by which the `tokenizers` package normalises: ids have to equal its.

usage: python3 core/data/unicode.py > core/data/unicode_tables.h
"""

import sys
import unicodedata

CATEGORIES = ['Lu', 'Ll', 'Lt', 'Lm', 'Lo', 'Mn', 'Mc', 'Me', 'Nd', 'Nl', 'No', 'Pc', 'Pd', 'Ps', 'Pe', 'Pi', 'Pf', 'Po', 'Sm',
              'Sc', 'Sk', 'So', 'Zs', 'Zl', 'Zp', 'Cc', 'Cf', 'Cs', 'Co', 'Cn']


# Marks, and code points with a combining class or a decomposition, that Unicode 9 does not have.
SINCE_10 = [
    (0x7FD, 0x7FD), (0x898, 0x89F), (0x8CA, 0x8D3), (0x9FE, 0x9FE), (0xAFA, 0xAFF), (0xB55, 0xB55), (0xC04, 0xC04), (0xC3C, 0xC3C),
    (0xD00, 0xD00), (0xD3B, 0xD3C), (0xD81, 0xD81), (0xEBA, 0xEBA), (0x1715, 0x1715), (0x180F, 0x180F), (0x1ABF, 0x1ACE),
    (0x1CF7, 0x1CF7), (0x1DF6, 0x1DFA), (0x32FF, 0x32FF), (0xA7F2, 0xA7F4), (0xA82C, 0xA82C), (0xA8FF, 0xA8FF), (0xAB69, 0xAB69),
    (0x10781, 0x10785), (0x10787, 0x107B0), (0x107B2, 0x107BA), (0x10D24, 0x10D27), (0x10EAB, 0x10EAC), (0x10F46, 0x10F50),
    (0x10F82, 0x10F85), (0x11070, 0x11070), (0x11073, 0x11074), (0x110C2, 0x110C2), (0x11145, 0x11146), (0x111C9, 0x111C9),
    (0x111CE, 0x111CF), (0x1133B, 0x1133B), (0x1145E, 0x1145E), (0x1182C, 0x1183A), (0x11930, 0x11935), (0x11937, 0x11938),
    (0x1193B, 0x1193E), (0x11940, 0x11940), (0x11942, 0x11943), (0x119D1, 0x119D7), (0x119DA, 0x119E0), (0x119E4, 0x119E4),
    (0x11A01, 0x11A0A), (0x11A33, 0x11A39), (0x11A3B, 0x11A3E), (0x11A47, 0x11A47), (0x11A51, 0x11A5B), (0x11A8A, 0x11A99),
    (0x11D31, 0x11D36), (0x11D3A, 0x11D3A), (0x11D3C, 0x11D3D), (0x11D3F, 0x11D45), (0x11D47, 0x11D47), (0x11D8A, 0x11D8E),
    (0x11D90, 0x11D91), (0x11D93, 0x11D97), (0x11EF3, 0x11EF6), (0x16F4F, 0x16F4F), (0x16F7F, 0x16F87), (0x16FE4, 0x16FE4),
    (0x16FF0, 0x16FF1), (0x1CF00, 0x1CF2D), (0x1CF30, 0x1CF46), (0x1E130, 0x1E136), (0x1E2AE, 0x1E2AE), (0x1E2EC, 0x1E2EF),
    (0x1F16C, 0x1F16C), (0x1FBF0, 0x1FBF9)]


def has_forms(c):
    return not any(first <= c <= last for first, last in SINCE_10)


def is_mark(c):
    return unicodedata.category(chr(c))[0] == 'M' and has_forms(c) or c in (0x1CF2, 0x1CF3)   # which Unicode 12 has as letters


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
    if not words or words[0].startswith('<') or 0xAC00 <= c <= 0xD7A3 or not has_forms(c):
        return None
    return [int(word, 16) for word in words]


def compatible():
    """By code point that has a compatible decomposition: all of it, as code points."""
    return {c: [ord(part) for part in unicodedata.normalize('NFKD', chr(c))] for c in range(0x110000)
            if unicodedata.decomposition(chr(c)).startswith('<') and has_forms(c)}


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
        lambda c: unicodedata.combining(chr(c)) if has_forms(c) else 0))
    marks = lines(f'{{0x{first:X}, 0x{last:X}, 1}},' for first, last, _ in ranges(lambda c: int(is_mark(c))))
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
    sys.stdout.write(TEMPLATE % {'version': unicodedata.unidata_version, 'categories': categories, 'classes': classes, 'marks': marks,
                                 'steps': lines(steps), 'forms': lines(forms), 'parts': lines(parts_of_all), 'lower': lines(
                                     f'{{0x{first:X}, 0x{last:X}, {step}, {difference}}},' for first, last, step, difference in lower_cases())})


TEMPLATE = '''// Unicode %(version)s: general categories and lower case; marks, canonical combining classes, canonical and
// compatible decompositions of Unicode 9. Ascending. Written by unicode.py.
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
inline constexpr Range kMarks[] = {  // others: 0
%(marks)s};
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
