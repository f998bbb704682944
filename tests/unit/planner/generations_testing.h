// Small GPTs that are trained by ranks in threads, one plan after the other.
#pragma once

#include <catch2/catch.hpp>
#include <exception>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/comm/loopback.h"
#include "core/plan/plan.h"
#include "core/program/executor.h"
#include "tests/unit/core/testing.h"
#include "tests/unit/core/trained_gpt.h"

namespace het::testing {

inline constexpr GptSizes kSizes{2, 5, 16, 4, 13, 4};
inline constexpr int kLayersOfModel = kSizes.blocks + 2;

inline Tensor scalar(DType dtype, Shape shape, double value) {
  Tensor tensor({dtype, std::move(shape)});
  tensor.set(0, value);
  return tensor;
}

inline Tensor tokens_of(int step, int microbatch, int what) {
  Tensor tensor({DType::i32, {kSizes.samples, kSizes.context}});
  std::mt19937 random(static_cast<unsigned>(10000 * step + 10 * microbatch + what));
  for (int64_t i = 0; i < tensor.elements(); ++i)
    tensor.set(i, static_cast<double>(random() % kSizes.vocabulary));
  return tensor;
}

inline double train_step(Executor& executor, int step, int microbatches) {
  const int first = executor.program().first_microbatch;
  for (int m = 0; m < executor.program().microbatches; ++m) {
    executor.write("tokens", tokens_of(step, first + m, 0), m);
    executor.write("labels", tokens_of(step, first + m, 1), m);
  }
  const double samples = static_cast<double>(microbatches) * kSizes.samples * kSizes.context;
  executor.write("scale", scalar(DType::f64, {1}, 1.0 / samples));
  executor.write("lr", scalar(DType::f64, {}, 1e-2));
  executor.write("step", scalar(DType::i64, {}, step));
  executor.run();
  return executor.read("loss").at(0);
}

inline int microbatches_of(const Plan& plan) {
  int count = 0;
  for (const Pipeline& pipeline : plan.pipelines) count += pipeline.microbatches;
  return count;
}

// One thread for each rank. What one of them throws ends the test.
inline void on_ranks(const std::vector<std::shared_ptr<Fabric>>& fabrics,
                     const std::function<void(int, const std::shared_ptr<Fabric>&)>& body) {
  std::vector<std::string> errors(fabrics.size());
  std::vector<std::thread> threads;
  for (size_t r = 0; r < fabrics.size(); ++r)
    threads.emplace_back([&, r] {
      try {
        body(static_cast<int>(r), fabrics[r]);
      } catch (const std::exception& error) {
        errors[r] = error.what();
        fabrics[r]->abort(error.what());
      }
    });
  for (std::thread& thread : threads) thread.join();
  REQUIRE(errors == std::vector<std::string>(fabrics.size()));
}

inline std::vector<int> all_ranks(const Fabric& fabric) {
  std::vector<int> ranks(static_cast<size_t>(fabric.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

}  // namespace het::testing
