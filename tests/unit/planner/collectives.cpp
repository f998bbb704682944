// Collectives that a graph of one rank names: lowered by a plan, and executed by ranks as threads.
#include <catch2/catch.hpp>
#include <numeric>
#include <random>
#include <thread>

#include "core/base/error.h"
#include "core/comm/groups.h"
#include "core/comm/loopback.h"
#include "core/comm/steps.h"
#include "core/ops/op.h"
#include "core/program/executor.h"
#include "kernels/reference/device.h"
#include "planner/lower/lower.h"
#include "tests/emulated_cuda/reference_on_gpu.h"
#include "tests/unit/core/testing.h"

using namespace het;
using namespace het::testing;

namespace {

// y = 2 · collective(3 · x), so that what is sent is computed and what comes is used; x is [elements].
Graph graph_around(std::string_view op, int64_t elements, Attributes attributes) {
  Graph graph;
  GraphBuilder b(graph);
  b.begin_layer("only");
  const ValueId x = b.input("x", {DType::f32, {elements}}, true);
  b.set_phase(Phase::update);  // what is made once a step is no sum over micro-batches
  const ValueId sent = b.call("scale", {x}, {{"factor", 3.0}});
  const auto come = b.call_all(op_named(op), {sent}, std::move(attributes));
  b.output("y", b.call("scale", {come[0]}, {{"factor", 2.0}}));
  return graph;
}

// One stage that all ranks share.
Plan shared_stage(int ranks) {
  Plan plan;
  plan.tensor = ranks;
  Stage stage;
  stage.layers = 1;
  for (int rank = 0; rank < ranks; ++rank) stage.devices.push_back(fmt::format("d:{}", rank));
  plan.pipelines = {{1, {stage}}};
  return plan;
}

struct Ran {
  std::vector<std::vector<double>> results;  // by rank
  std::vector<int64_t> bytes_sent;
  std::string errors;
};

// Every rank executes its own graph on its own x, on processors or on (emulated) GPUs.
Ran execute(const std::vector<Graph>& graphs, const std::vector<std::vector<double>>& given, bool gpus) {
  const int size = static_cast<int>(graphs.size());
  Ran ran{std::vector<std::vector<double>>(graphs.size()), std::vector<int64_t>(graphs.size()), {}};
  std::vector<std::string> errors(graphs.size());
  std::vector<int> ranks(graphs.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  auto fabrics = make_loopback(size);
  std::vector<std::thread> threads;
  for (size_t r = 0; r < graphs.size(); ++r)
    threads.emplace_back([&, r] {
      try {
        const Program program = lower(graphs[r], shared_stage(size), static_cast<int>(r));
        const auto problems = verify(program);
        if (!problems.empty()) fail_usage("{}", fmt::join(problems, "\n"));
        const auto groups = std::make_shared<Groups>(fabrics[r]);
        const auto device =
            gpus ? cuda_emulated::make_reference_on_gpu(static_cast<int>(r)) : make_reference_device();
        Executor executor(program, std::make_shared<StateStore>(device, 1), groups);
        const int64_t before = groups->group(ranks).bytes_sent();
        executor.write("x", Tensor::of<float>(std::vector<float>(given[r].begin(), given[r].end()),
                                              {static_cast<int64_t>(given[r].size())}));
        executor.run();
        ran.bytes_sent[r] = groups->group(ranks).bytes_sent() - before;
        ran.results[r] = values_of(executor.read("y"));
      } catch (const std::exception& error) {
        errors[r] = error.what();
        fabrics[r]->abort(error.what());
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (const std::string& error : errors) ran.errors += error;
  return ran;
}

// What steps.h says that a rank sends.
int64_t stated(const CollectiveRequest& request, int rank, int size) {
  int64_t bytes = 0;
  for (const CollectiveStep& step : mesh_steps(request, rank, size))
    for (const StepTransfer& transfer : step)
      if (transfer.from == rank) bytes += transfer.bytes;
  return bytes;
}

std::vector<std::vector<double>> numbers(const std::vector<int64_t>& counts) {
  std::vector<std::vector<double>> given;
  for (size_t r = 0; r < counts.size(); ++r) {
    given.emplace_back();
    for (int64_t i = 0; i < counts[r]; ++i) given.back().push_back(static_cast<double>(100000 * r) + i);
  }
  return given;
}

}  // namespace

TEST_CASE("a grouped broadcast in a graph gives every rank the blocks of all", "[collectives]") {
  std::mt19937 random(7);
  for (const int size : {2, 3, 4})
    for (int trial = 0; trial < 6; ++trial) {
      std::vector<int64_t> counts(static_cast<size_t>(size));
      for (int64_t& count : counts) count = random() % 3 == 0 ? 0 : static_cast<int64_t>(1 + random() % 3000);
      counts[random() % counts.size()] = trial % 2 == 0 ? 2500 : 1;
      INFO("counts " << to_string(Shape(counts)));
      std::vector<Graph> graphs;
      for (int r = 0; r < size; ++r)
        graphs.push_back(graph_around("grouped_broadcast", counts[static_cast<size_t>(r)],
                                      {{"counts", counts}, {"part", int64_t{r}}}));
      const auto given = numbers(counts);
      std::vector<double> wanted;
      for (const auto& block : given)
        for (const double x : block) wanted.push_back(6 * x);
      const Ran ran = execute(graphs, given, false);
      CHECK(ran.errors == "");
      const CollectiveRequest request{CollectiveKind::grouped_broadcast, DType::f32, counts};
      for (int r = 0; r < size; ++r) {
        CHECK(ran.results[static_cast<size_t>(r)] == wanted);
        CHECK(ran.bytes_sent[static_cast<size_t>(r)] == stated(request, r, size));
      }
    }
}

TEST_CASE("a broadcast in a graph gives every rank the root's operand", "[collectives]") {
  for (const int size : {2, 3, 4})
    for (const int64_t count : {int64_t{0}, int64_t{5}, int64_t{4099}})
      for (int root = 0; root < size; ++root) {
        INFO(size << " ranks, " << count << " elements of rank " << root);
        const std::vector<int64_t> counts(static_cast<size_t>(size), count);
        const std::vector<Graph> graphs(
            counts.size(), graph_around("broadcast", count, {{"root", static_cast<int64_t>(root)}}));
        const auto given = numbers(counts);
        std::vector<double> wanted = given[static_cast<size_t>(root)];
        for (double& x : wanted) x *= 6;
        const Ran ran = execute(graphs, given, false);
        CHECK(ran.errors == "");
        CollectiveRequest request{CollectiveKind::broadcast, DType::f32, {count}};
        request.peer = root;
        for (int r = 0; r < size; ++r) {
          CHECK(ran.results[static_cast<size_t>(r)] == wanted);
          CHECK(ran.bytes_sent[static_cast<size_t>(r)] == stated(request, r, size));
        }
      }
}

TEST_CASE("broadcasts in a graph go from device to device, too", "[collectives]") {
  const std::vector<int64_t> counts{3, 0, 700};
  std::vector<Graph> grouped, single;
  for (int64_t r = 0; r < 3; ++r) {
    grouped.push_back(
        graph_around("grouped_broadcast", counts[static_cast<size_t>(r)], {{"counts", counts}, {"part", r}}));
    single.push_back(graph_around("broadcast", 700, {{"root", int64_t{2}}}));
  }
  const auto given = numbers(counts);
  std::vector<double> all, last;
  for (const auto& block : given)
    for (const double x : block) all.push_back(6 * x);
  for (const double x : given[2]) last.push_back(6 * x);
  const Ran blocks = execute(grouped, given, true);
  const Ran roots = execute(single, numbers({700, 700, 700}), true);
  CHECK(blocks.errors + roots.errors == "");
  for (size_t r = 0; r < 3; ++r) {
    CHECK(blocks.results[r] == all);
    CHECK(roots.results[r] == last);
  }
}

TEST_CASE("broadcasts refuse roots and counts that cannot be", "[collectives]") {
  Graph graph;
  GraphBuilder b(graph);
  const ValueId x = b.input("x", {DType::f32, {4}});
  CHECK_THROWS_WITH(b.call("broadcast", {x}, {{"root", int64_t{-1}}}),
                    Catch::Contains("root = -1 is no rank"));
  CHECK_THROWS_WITH(
      b.call("grouped_broadcast", {x}, {{"counts", std::vector<int64_t>{3, 4}}, {"part", int64_t{0}}}),
      Catch::Contains("x has 4 elements, counts say 3"));
}
