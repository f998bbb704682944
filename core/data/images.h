// Images to train on, with a label each: drawn, or read from CIFAR-10's files. Whole tensors in memory, as
// bytes; what reads them makes floats of a batch.
#pragma once

#include "core/io/files.h"
#include "core/tensor/tensor.h"

namespace het {

struct Images {
  Tensor pixels;     // u8 [n, 3, height, width]: red, green and blue
  Tensor labels;     // i32 [n]
  int64_t held = 0;  // the last images, that are kept for validation
};

// Kinds of shapes that can be drawn: disk, ring, square, frame, diamond, triangle, cross, diagonal cross,
// bars, columns.
inline constexpr int64_t kShapes = 10;

// `count` images of `size` by `size`, each of one shape of `classes` kinds somewhere in it; its place, its
// size and both colours are drawn, and so is some noise. Image i has the label i % classes and depends on
// (size, classes, seed, i) only, to the bit on every machine. Throws Error(usage) for sizes that make no
// images.
Images draw_shapes(int64_t count, int64_t size, int64_t classes, int64_t seed);

// CIFAR-10's binary version (cs.toronto.edu/~kriz/cifar.html) in a folder: data_batch_1.bin to
// data_batch_5.bin, as many of them as there are, then test_batch.bin, which is held out. Throws Error(usage)
// where one is not made of records of 3073 bytes with a label below 10.
Images read_cifar10(const Path& folder);

}  // namespace het
