// Programs of all ranks of a plan, run by threads, against one device: for tests that plans do not change
// results.
#pragma once

#include <chrono>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/graph/graph.h"
#include "core/plan/plan.h"
#include "core/plan/runtime.h"
#include "core/program/executor.h"
#include "core/tensor/slice.h"

namespace het::testing::distributed {

// GPT's table is smaller than the gradients that it is summed from, LLaMA's larger: each takes a different
// way.
constexpr int64_t kSamples = 2, kContext = 12, kWidth = 32, kHeads = 8, kVocabulary = 19,
                  kLlamaVocabulary = 29;
// Of AdamW: small gradients are divided by their own size, and so is their rounding error, down to about
// kEps.
constexpr double kEps = 1e-4;
constexpr int kSteps = 5, kBlocks = 4, kLayers = kBlocks + 2;

// A GPT or, with `llama`, a LLaMA; one layer for the embedding, one for each block, one for the head.
Graph small_model(bool llama, DType dtype, bool penalty = false);
// Without norms and residuals.
Graph bare_model();
// Of each parameter a copy in bf16, rounded stochastically.
Graph with_rounded_copies(Graph graph);

struct Outcome {
  std::vector<double> losses, norms;
  std::map<std::string, Tensor> parameters, moments;  // optimizer state: what this rank keeps
  std::map<std::string, TensorSlice> slices;          // of those that this rank has a part of
};

// The inputs of a step, which has `microbatches` in all.
void write_inputs(Executor& executor, int step, int microbatches);
// kSteps steps.
Outcome train(Executor& executor, int microbatches);
// By one device.
Outcome alone(const Graph& graph, int microbatches);
int microbatches_of(const Plan& plan);
double difference(const Outcome& one, const Outcome& several);

// Where the reference kernels run; `either`: on every third rank a processor. `instruction_sets`: fast
// kernels, of the first and of the last instruction set in turn.
enum class On : uint8_t { processors, gpus, either, instruction_sets };
// Runs `work` with the program of each rank, each in a separate thread; the error that each ended with, or
// "".
std::vector<std::string> on_ranks(std::vector<Program> programs, std::chrono::seconds timeout,
                                  const std::function<void(int rank, Executor&)>& work,
                                  On on = On::processors);

// What is wrong with the run of a plan, and how far it was from one device's.
struct Verdict {
  std::string problem;  // empty: nothing
  double apart = 0;
};
Verdict judge(const Graph& model, const Plan& plan, const Outcome& alone, double tolerance,
              On on = On::processors, const Runtime& runtime = {});

// How one device trains the models: computed once for each number of micro-batches.
class Alone {
 public:
  explicit Alone(DType dtype)
      : models_{small_model(false, dtype), small_model(true, dtype), small_model(false, dtype, true)} {}

  const Graph& model(size_t which) const { return models_[which]; }
  const Outcome& outcome(size_t which, const Plan& plan) {
    const int microbatches = microbatches_of(plan);
    const auto [entry, fresh] = known_.emplace(std::pair{which, microbatches}, Outcome{});
    if (fresh) entry->second = alone(models_[which], microbatches);
    return entry->second;
  }

 private:
  Graph models_[3];  // GPT, LLaMA, GPT with a penalty
  std::map<std::pair<size_t, int>, Outcome> known_;
};

inline int trials_or(int count) {
  const char* given = std::getenv("HETRUN_PLAN_TRIALS");
  return given == nullptr ? count : std::atoi(given);
}

inline unsigned first_seed() {
  const char* given = std::getenv("HETRUN_PLAN_SEED");
  return given == nullptr ? 1 : static_cast<unsigned>(std::atoi(given));
}

}  // namespace het::testing::distributed
