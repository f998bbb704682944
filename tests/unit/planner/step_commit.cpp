// A step is decided for all ranks or for none: one rank is lost at each instruction of a step, and what the
// others have is compared with an undisturbed run, tensor by tensor.
#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <cstring>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <thread>

#include "core/base/error.h"
#include "core/comm/loopback.h"
#include "core/run/restore.h"
#include "core/run/settle.h"
#include "planner/lower/lower.h"
#include "planner/lower/rank_assignment.h"
#include "planner/migrate/migrate.h"
#include "planner/plan_layout.h"
#include "tests/unit/core/testing.h"
#include "tests/unit/core/trained_gpt.h"

using namespace het;
using namespace het::testing;
using planner::plan_moves;

namespace {

constexpr GptSizes kSizes{1, 4, 8, 2, 11, 2};
constexpr int kLayersOfModel = 4;  // embedding, blocks, head
constexpr int64_t kGeneration = 7;

using State = std::map<std::string, Tensor>;

State state_of(const Executor& executor) {
  State state;
  for (const auto& [name, entry] : executor.state().entries())
    state.emplace(name, executor.state().read(name));
  return state;
}

bool same_bits(const Tensor& a, const Tensor& b) {
  return a.type() == b.type() &&
         std::memcmp(a.bytes(), b.bytes(), static_cast<size_t>(a.type().bytes())) == 0;
}

void write_inputs(Executor& executor, int step, int microbatches) {
  const auto tokens_of = [&](int m, int what) {
    Tensor tensor({DType::i32, {kSizes.samples, kSizes.context}});
    std::mt19937 random(static_cast<unsigned>(1000 * step + 10 * m + what));
    for (int64_t i = 0; i < tensor.elements(); ++i)
      tensor.set(i, static_cast<double>(random() % kSizes.vocabulary));
    return tensor;
  };
  const auto number = [](DType dtype, Shape shape, double value) {
    Tensor tensor({dtype, std::move(shape)});
    tensor.set(0, value);
    return tensor;
  };
  const int first = executor.program().first_microbatch;
  for (int m = 0; m < executor.program().microbatches; ++m) {
    executor.write("tokens", tokens_of(first + m, 0), m);
    executor.write("labels", tokens_of(first + m, 1), m);
  }
  executor.write("scale", number(DType::f32, {1},
                                 1.0 / static_cast<double>(microbatches * kSizes.samples * kSizes.context)));
  executor.write("lr", number(DType::f32, {}, 1e-2));
  executor.write("step", number(DType::i64, {}, step));
}

// What one rank is left with when another one was lost.
struct Rank {
  std::shared_ptr<StateStore> state;
  std::unique_ptr<Executor> executor;
  std::string error;
  bool lost = false;
};

struct Fault {
  enum class Kind : uint8_t {
    loss,     // of the rank, with all it has
    error,    // it keeps what it has
    cut_off,  // the same, once all others have decided the step
  };
  int rank = -1, instruction = -1;
  Kind kind = Kind::loss;
};

int microbatches_of(const Plan& plan) {
  int count = 0;
  for (const Pipeline& pipeline : plan.pipelines) count += pipeline.microbatches;
  return count;
}

// One whole step, and a second one that is broken off before a rank does an instruction; without a fault,
// both whole.
std::vector<Rank> run_two_steps(const Graph& graph, const Plan& plan, const Fault& fault) {
  const int ranks = static_cast<int>(devices_of(plan).size());
  const int microbatches = microbatches_of(plan);
  LoopbackOptions options;
  options.timeouts.timeout = std::chrono::seconds(20);
  auto fabrics = make_loopback(ranks, options);
  std::vector<Rank> result(static_cast<size_t>(ranks));
  std::atomic<int> decided{0};
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r)
    threads.emplace_back([&, r] {
      Rank& own = result[static_cast<size_t>(r)];
      auto& fabric = fabrics[static_cast<size_t>(r)];
      try {
        own.state = reference_state(3);
        own.executor = std::make_unique<Executor>(lower(graph, plan, r, true), own.state,
                                                  std::make_shared<Groups>(fabric));
        own.state->begin_generation(kGeneration);
        own.executor->on_word([r] { return 0xabcde0U + static_cast<uint32_t>(r); });
        write_inputs(*own.executor, 1, microbatches);
        own.executor->run();
        own.executor->before_each([&, r](int instruction) {
          if (instruction == own.executor->program().decided) ++decided;
          if (r != fault.rank || instruction != fault.instruction) return;
          while (fault.kind == Fault::Kind::cut_off && decided < ranks - 1) std::this_thread::yield();
          own.lost = fault.kind == Fault::Kind::loss;
          throw Error(ErrorKind::peer, "the rank is lost");
        });
        write_inputs(*own.executor, 2, microbatches);
        own.executor->run();
      } catch (const Error& error) {
        own.error = error.what();
        if (own.lost) own.executor.reset();
        fabric->abort(error.what());
        fabric.reset();
        if (own.executor != nullptr) own.executor->freeze();
      }
    });
  for (std::thread& thread : threads) thread.join();
  return result;
}

struct Case {
  std::string name;
  Plan plan;
};

std::vector<Case> cases() {
  const auto stage = [](std::vector<std::string> devices, int first, int layers) {
    Stage made;
    made.devices = std::move(devices);
    made.first_layer = first;
    made.layers = layers;
    return made;
  };
  Plan copies;
  copies.microbatch = 1;
  for (const char* device : {"x:0", "x:1", "x:2"})
    copies.pipelines.push_back({1, {stage({device}, 0, kLayersOfModel)}});
  Plan unequal;
  unequal.microbatch = 1;
  unequal.pipelines = {{2, {stage({"x:0"}, 0, 2), stage({"x:1"}, 2, kLayersOfModel - 2)}},
                       {1, {stage({"x:2"}, 0, kLayersOfModel)}}};
  Plan tensor;
  tensor.microbatch = 1;
  tensor.tensor = 2;
  tensor.pipelines = {{1, {stage({"x:0", "x:1"}, 0, kLayersOfModel)}},
                      {1, {stage({"x:2", "x:3"}, 0, kLayersOfModel)}}};
  std::vector<Case> all{{"three copies", copies}, {"unequal pipelines", unequal}, {"tensor = 2", tensor}};
  for (size_t i = 0; i < 3; ++i) {
    all.push_back({all[i].name + ", sharded optimizer", all[i].plan});
    all.back().plan.sharded_optimizer = true;
  }
  return all;
}

Tensor part_of(const Tensor& held, const TensorSlice& slice, const TensorSlice& part) {
  Tensor result(TensorType{held.dtype(), part.shape()});
  copy(result, part, held, slice);
  return result;
}

// The first tensor whose bytes on a rank differ from those of an undisturbed run at that version; "": none.
std::string torn(const Executor& executor, const State& before, const State& after) {
  const StateStore& store = executor.state();
  const State& right = store.version().step == 1 ? before : after;
  CHECK((store.version().step == 1 || store.version().step == 2));
  for (const auto& [name, entry] : store.entries()) {
    const TensorSlice slice = slice_of(entry), current = current_slice_of(entry);
    if (!same_bits(part_of(store.read(name), slice, current), part_of(right.at(name), slice, current)))
      return name;
  }
  return "";
}

// What two whole steps leave each rank with, and the first of them alone.
struct Undisturbed {
  std::vector<Rank> ranks;
  std::vector<State> before, after;
};

Undisturbed undisturbed(const Graph& graph, const Plan& plan) {
  Undisturbed all;
  all.ranks = run_two_steps(graph, plan, {});
  for (size_t r = 0; r < all.ranks.size(); ++r) {
    REQUIRE(all.ranks[r].error.empty());
    REQUIRE(all.ranks[r].executor->is_decided());
    all.after.push_back(state_of(*all.ranks[r].executor));
    REQUIRE(all.ranks[r].state->version() == Version{2, kGeneration});
    // The loss of another rank at the very beginning of the second step leaves the first one's.
    const int other = r == 0 ? 1 : 0;
    const auto ranks = run_two_steps(
        graph, plan, {other, all.ranks[static_cast<size_t>(other)].executor->program().prologue});
    REQUIRE_FALSE(ranks[r].executor->is_decided());
    all.before.push_back(state_of(*ranks[r].executor));
    CHECK_FALSE(same_bits(all.before[r].begin()->second, all.after[r].begin()->second));
  }
  return all;
}

}  // namespace

namespace {

// The whole state of the graph.
std::vector<Inventory::Need> whole_state(const Graph& graph) {
  std::vector<Inventory::Need> needs;
  for (const Value& value : graph.values)
    if (is_state(value)) needs.push_back({value.name, TensorSlice::whole(value.type.shape)});
  return needs;
}

// What none of the ranks but one had in an undisturbed run.
int64_t elements_only_at(size_t rank, const std::vector<Rank>& ranks, const Graph& graph) {
  int64_t count = 0;
  for (const Inventory::Need& need : whole_state(graph)) {
    std::vector<TensorSlice> others;
    for (size_t r = 0; r < ranks.size(); ++r)
      if (const auto& entries = ranks[r].state->entries(); r != rank && entries.count(need.name) != 0)
        others.push_back(slice_of(entries.at(need.name)));
    for (const TensorSlice& slice : missing(need.slice, others)) count += slice.elements();
  }
  return count;
}

int64_t elements_of_needs(const std::vector<Inventory::Need>& needs) {
  int64_t count = 0;
  for (const Inventory::Need& need : needs) count += need.slice.elements();
  return count;
}

// What the ranks that are left say of themselves, as they tell it each other.
std::vector<MemberState> states_of(const std::vector<Rank>& ranks) {
  std::vector<MemberState> members;
  for (const Rank& rank : ranks)
    members.push_back(
        rank.lost ? MemberState{}
                  : parse_member_state(to_text(member_state_of(*rank.state, rank.executor.get())), "a rank"));
  return members;
}

}  // namespace

TEST_CASE("a rank lost at any instruction leaves the others a step before or a step after, never torn",
          "[step commit]") {
  const Graph graph = trained_gpt(kSizes);
  const auto needs = whole_state(graph);
  int points = 0, finished = 0, decided_points = 0, lacking = 0;
  for (const Case& each : cases()) {
    INFO(each.name);
    const auto [whole, before, after] = undisturbed(graph, each.plan);
    for (int victim = 0; victim < static_cast<int>(whole.size()); ++victim) {
      const Program& program = whole[static_cast<size_t>(victim)].executor->program();
      const int64_t lost_elements = elements_only_at(static_cast<size_t>(victim), whole, graph);
      for (int i = program.prologue; i < static_cast<int>(program.instructions.size()); ++i) {
        INFO("rank " << victim << " is lost at instruction " << i << ", the step is decided at "
                     << program.decided);
        const auto ranks = run_two_steps(graph, each.plan, {victim, i});
        REQUIRE(ranks[static_cast<size_t>(victim)].lost);
        for (size_t r = 0; r < ranks.size(); ++r)
          if (!ranks[r].lost) CHECK(torn(*ranks[r].executor, before[r], after[r]) == "");

        const Settlement settled = settle(states_of(ranks), needs);
        const bool decided = settled.version.step == 2;
        CHECK(settled.version.generation == kGeneration);
        CHECK((i >= program.decided || !decided || i == program.decided - 1));
        for (const int r : settled.finish) ranks[static_cast<size_t>(r)].executor->finish(*settled.decision);
        finished += static_cast<int>(settled.finish.size());
        for (size_t r = 0; r < ranks.size(); ++r) {
          if (ranks[r].lost) continue;
          CHECK(ranks[r].state->version() == settled.version);
          CHECK(torn(*ranks[r].executor, before[r], after[r]) == "");
        }
        // What the lost rank alone had is named. Of a decided step that may be parameters, too, whose update
        // it made and others have not had yet.
        const int64_t named = elements_of_needs(settled.missing);
        CHECK((decided ? named >= lost_elements : named == lost_elements));
        if (!each.plan.sharded_optimizer) CHECK(named == lost_elements);
        ++points;
        if (decided) ++decided_points;
        if (named > 0) ++lacking;
      }
    }
  }
  CHECK(points >= 500);
  WARN(points << " losses, " << decided_points << " of them in decided steps, " << lacking
              << " with slices that no other rank had; " << finished
              << " updates were finished by survivors");
}

TEST_CASE("a rank that is cut off before it knows the decision makes the update by the others' numbers",
          "[step commit]") {
  const Graph graph = trained_gpt(kSizes);
  const auto needs = whole_state(graph);
  for (const Case& each : cases()) {
    INFO(each.name);
    const auto [whole, before, after] = undisturbed(graph, each.plan);
    for (size_t r = 0; r < whole.size(); ++r) {
      const int decided = whole[r].executor->program().decided;
      const auto ranks =
          run_two_steps(graph, each.plan, {static_cast<int>(r), decided - 1, Fault::Kind::cut_off});
      Executor& executor = *ranks[r].executor;
      INFO("rank " << r);
      CHECK(executor.state().version() == Version{1, kGeneration});
      CHECK(torn(executor, before[r], after[r]) == "");
      const Settlement settled = settle(states_of(ranks), needs);
      CHECK(settled.version == Version{2, kGeneration});
      CHECK(settled.missing.empty());
      CHECK(std::count(settled.finish.begin(), settled.finish.end(), static_cast<int>(r)) == 1);
      for (const int each_rank : settled.finish)
        ranks[static_cast<size_t>(each_rank)].executor->finish(*settled.decision);
      for (size_t other = 0; other < ranks.size(); ++other) {
        CHECK(ranks[other].state->version() == settled.version);
        CHECK(torn(*ranks[other].executor, before[other], after[other]) == "");
      }
      for (const char* output : {"loss", "norm"})
        CHECK(same_bits(executor.read(output), whole[r].executor->read(output)));
    }
  }
}

TEST_CASE("the next generation goes on from a step that one of its ranks has yet to finish",
          "[step commit]") {
  const Graph graph = trained_gpt(kSizes);
  for (const Case& each : cases()) {
    INFO(each.name);
    const auto [whole, before, after] = undisturbed(graph, each.plan);
    const int ranks = static_cast<int>(whole.size());
    for (int behind = 0; behind < ranks; ++behind) {
      INFO("rank " << behind << " does not know that the step is decided");
      const int decided = whole[static_cast<size_t>(behind)].executor->program().decided;
      auto left = run_two_steps(graph, each.plan, {behind, decided - 1, Fault::Kind::cut_off});
      auto fabrics = make_loopback(ranks, {});
      std::vector<int> all(left.size());
      std::iota(all.begin(), all.end(), 0);
      std::vector<std::string> errors(left.size());
      std::vector<Restored> restored(left.size());
      std::vector<std::thread> threads;
      for (int r = 0; r < ranks; ++r)
        threads.emplace_back([&, r] {
          const auto at = static_cast<size_t>(r);
          try {
            Program program = lower(graph, each.plan, r, true);
            const auto world = fabrics[at]->group("world", all);
            RestoreOptions options;
            options.plan_moves = plan_moves();
            options.generation = kGeneration + 1;
            restored[at] =
                *restore(*world, *left[at].state, left[at].executor.get(), needs_of(program), options);
            left[at].executor->close("another generation has begun");
            Executor executor(std::move(program), left[at].state, std::make_shared<Groups>(fabrics[at]));
            errors[at] = torn(executor, before[at], after[at]);
            write_inputs(executor, 3, microbatches_of(each.plan));
            executor.run();
          } catch (const Error& error) {
            errors[at] = error.what();
            fabrics[at]->abort(error.what());
          }
        });
      for (std::thread& thread : threads) thread.join();
      CHECK(errors == std::vector<std::string>(left.size()));
      CHECK(restored[static_cast<size_t>(behind)].finished);
      for (size_t r = 0; r < left.size(); ++r) {
        CHECK(restored[r].version == Version{2, kGeneration});
        CHECK(left[r].state->version() == Version{3, kGeneration + 1});
      }
    }
  }
}

TEST_CASE("ranks give each other a word with the numbers that decide a step", "[step commit]") {
  const Graph graph = trained_gpt(kSizes);
  for (const Case& each : cases()) {
    const auto ranks = run_two_steps(graph, each.plan, {});
    std::vector<uint32_t> words;
    for (size_t r = 0; r < ranks.size(); ++r) words.push_back(0xabcde0U + static_cast<uint32_t>(r));
    for (const Rank& rank : ranks) CHECK(rank.executor->words() == words);
  }
  Executor single(lower_single(graph, 1), reference_state(3));
  CHECK(single.words().empty());
}

TEST_CASE("a step that is broken off before its decision is run again as if it had not begun",
          "[step commit]") {
  const Graph graph = trained_gpt(kSizes);
  int points = 0;
  for (const Case& each : cases()) {
    INFO(each.name);
    const auto [whole, before, after] = undisturbed(graph, each.plan);
    const int ranks = static_cast<int>(whole.size());
    for (int broken = 0; broken < ranks; ++broken) {
      const Program& program = whole[static_cast<size_t>(broken)].executor->program();
      for (int i = program.prologue; i < program.decided - 1; i += 5) {
        INFO("broken off by rank " << broken << " at instruction " << i);
        auto left = run_two_steps(graph, each.plan, {broken, i, Fault::Kind::error});
        auto fabrics = make_loopback(ranks, {});
        std::vector<State> again(left.size());
        std::vector<std::string> errors(left.size());
        std::vector<std::thread> threads;
        for (int r = 0; r < ranks; ++r)
          threads.emplace_back([&, r] {
            const auto at = static_cast<size_t>(r);
            try {
              Executor executor(lower(graph, each.plan, r, true), left[at].state,
                                std::make_shared<Groups>(fabrics[at]));
              write_inputs(executor, 2, microbatches_of(each.plan));
              executor.run();
              again[at] = state_of(executor);
            } catch (const Error& error) {
              errors[at] = error.what();
              fabrics[at]->abort(error.what());
            }
          });
        for (std::thread& thread : threads) thread.join();
        CHECK(errors == std::vector<std::string>(left.size()));
        for (size_t r = 0; r < left.size(); ++r)
          for (const auto& [name, tensor] : again[r]) CHECK(same_bits(tensor, after[r].at(name)));
        ++points;
      }
    }
  }
  CHECK(points >= 100);
}

TEST_CASE("the update of a step that is finished takes the numbers that it is given", "[step commit]") {
  const Graph graph = trained_gpt(kSizes);
  const Plan plan = cases()[0].plan;
  const auto [whole, before, after] = undisturbed(graph, plan);
  const auto ranks =
      run_two_steps(graph, plan, {0, whole[0].executor->program().decided - 1, Fault::Kind::cut_off});
  StepDecision decision{2, ranks[1].executor->decision()->numbers.clone()};
  for (int64_t i = 0; i < decision.numbers.elements(); ++i)
    decision.numbers.set(i, 1000);  // the norms: all is clipped more
  ranks[0].executor->finish(decision);
  CHECK(torn(*ranks[0].executor, before[0], after[0]) != "");
}

TEST_CASE("a step is finished only from where all gradients are there, by its own decision",
          "[step commit]") {
  const Graph graph = trained_gpt(kSizes);
  const Plan plan = cases()[0].plan;
  const auto ranks = run_two_steps(graph, plan, {});
  Executor& whole = *ranks[0].executor;
  CHECK(whole.decision()->step == 2);
  CHECK_THROWS_WITH(whole.finish(*whole.decision()), Catch::Contains("one that ends at"));
  Executor single(lower_single(graph, 1), reference_state(3));
  CHECK(single.decision() == nullptr);
  const auto broken = run_two_steps(graph, plan, {1, 2});
  CHECK(broken[0].executor->decision()->step == 1);
  CHECK_THROWS_WITH(broken[0].executor->run(), Catch::Contains("is frozen"));
  const int decided = whole.program().decided;
  const auto waiting = run_two_steps(graph, plan, {0, decided - 1, Fault::Kind::cut_off});
  StepDecision other = *waiting[1].executor->decision();
  other.step = 3;
  CHECK_THROWS_WITH(waiting[0].executor->finish(other), Catch::Contains("the step to finish is 2"));
}

namespace {

// A layer whose update needs no norm.
Graph without_norm() {
  Graph graph;
  GraphBuilder b(graph);
  const ValueId x = b.input("x", {DType::f32, {2, 6}});
  b.begin_layer("layer");
  const ValueId w = b.parameter("w", {DType::f32, {6, 6}}, {Initial::Kind::normal, 0.5});
  const ValueId y = b.call("linear", {x, w, kAbsent});
  const ValueId loss = b.call("sum", {b.call("square", {y})}, {{"dims", std::vector<int64_t>{0, 1}}});
  b.output("loss", loss);
  const auto gradients = differentiate(graph, loss);
  b.set_phase(Phase::update);
  b.set_layer(-1);
  const ValueId lr = b.input("lr", {DType::f32, {}}, true), one = b.input("one", {DType::f32, {}}, true);
  b.call_all(op_named("sgd"), {w, kAbsent, gradients.at(w), lr, one}, {{"momentum", 0.0}});
  return graph;
}

Plan two_copies() {
  Plan plan;
  plan.microbatch = 2;
  for (const char* device : {"x:0", "x:1"}) {
    Stage stage;
    stage.devices = {device};
    stage.layers = 1;
    plan.pipelines.push_back({1, {stage}});
  }
  return plan;
}

bool has(const std::vector<std::string>& problems, const std::string& words) {
  return std::any_of(problems.begin(), problems.end(),
                     [&](const std::string& each) { return each.find(words) != std::string::npos; });
}

}  // namespace

TEST_CASE("without a norm, a gathering of all ranks decides the step", "[step commit]") {
  const Graph graph = without_norm();
  std::vector<Program> programs;
  for (int rank : {0, 1}) programs.push_back(lower(graph, two_copies(), rank, false));
  for (const Program& program : programs) CHECK(verify(program).empty());
  CHECK(verify_together(programs).empty());
  Program program = programs[0];
  const auto& await = std::get<Await>(program.instructions[static_cast<size_t>(program.decided) - 1]);
  const auto& gather = std::get<Start>(program.instructions[static_cast<size_t>(await.start)]);
  CHECK(gather.request.kind == CollectiveKind::all_gather);
  CHECK(gather.request.label == "all gradients are there");
  const int decided = program.decided;

  program.decided = static_cast<int>(program.instructions.size());
  CHECK(has(verify(program), "changes 'w' before the step is decided"));
  program.decided = decided - 1;
  CHECK(has(verify(program), "which does not follow a gathering of all ranks"));
  program.decided = -1;
  CHECK(has(verify(program), "the step is decided at instruction -1"));

  // The gradient's sum and the gathering in turn: each rank decides by another one.
  std::vector<Program> apart = programs;
  const Program alone = lower_single(graph, 1);
  CHECK(alone.decided > 0);
  CHECK(verify(alone).empty());
  const auto first_await = std::find_if(apart[1].instructions.begin(), apart[1].instructions.end(),
                                        [](const auto& each) { return std::holds_alternative<Await>(each); });
  apart[1].decided = static_cast<int>(first_await - apart[1].instructions.begin()) + 1;
  REQUIRE(apart[1].decided < decided);
  CHECK(has(verify_together(apart), "rank 1 decides the step by operation"));
}

TEST_CASE("state is changed after the decision by this rank's part, then by what others send",
          "[step commit]") {
  const Graph graph = trained_gpt(kSizes);
  const Plan plan = cases()[3].plan;  // a sharded optimizer
  Program program = lower(graph, plan, 0, true);
  REQUIRE(verify(program).empty());
  // The first update goes behind the gathering of parameters.
  const auto& instructions = program.instructions;
  const auto update =
      std::find_if(instructions.begin() + program.decided, instructions.end(), [](const auto& each) {
        const auto* compute = std::get_if<Compute>(&each);
        return compute != nullptr && compute->op->name.find("adamw") != std::string_view::npos;
      });
  REQUIRE(update != instructions.end());
  const Instruction moved = *update;
  program.instructions.push_back(moved);
  CHECK(has(verify(program), "after a collective of the decided step"));
}
