// Sharding programs with uneven shares for unlike devices, after HAP (Zhang et al., EuroSys 2024,
// arXiv 2401.05965): the search for a program and the linear program for shares in turn, from several starts,
// with a lower bound that holds for all programs and all shares. Beyond what is published: rules for
// contracted dimensions, heads and vocabulary, latencies, a heuristic and dominance in the search, layers
// that repeat solved once.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/plan/plan.h"
#include "planner/hap/search.h"

namespace het::planner::hap {

// Ways to lay out a graph that people use, to be compared with; each the best of its kind under the same
// costs.
enum class Baseline : uint8_t {
  even_data,          // data parallelism, even shares
  proportional_data,  // data parallelism, shares as the devices' rates
  partly_data,  // data parallelism of some layers only; every device computes the others with all samples
  zero,         // data parallelism whose weights and optimizer state are cut along their first dimension
  megatron,     // Megatron-LM's tensor parallelism, even shares
  published,    // HAP's published rules: no contracted dimension, no heads, no vocabulary
};
std::string_view name_of(Baseline baseline);
inline constexpr Baseline kBaselines[] = {Baseline::even_data,   Baseline::proportional_data,
                                          Baseline::partly_data, Baseline::zero,
                                          Baseline::megatron,    Baseline::published};

struct Synthesised {
  ShardingProgram program;  // with its shares
  Ticks compute = 0, communication = 0;
  Ticks cost = kNever;  // of both, and of what it receives of other stages
  bool found() const { return cost < kNever; }
};

// A program with what it costs.
Synthesised synthesised(ShardingCosts& costs, ShardingProgram program);

struct Request {
  const PlacementTable* table = nullptr;
  const DeviceGroup* group = nullptr;
  int microbatches = 1;
  std::vector<Shares> starts = {};     // beside even and proportional ones
  int microbatch = 1;                  // samples of the graph
  const DeviceGroup* outer = nullptr;  // of a graph that is a part: ShardingCosts::set_outer()
  SearchOptions options = {};          // of every search
  bool is_wide = false;                // it is known that the graph is (search.h)
  // Those that the group runs, as a stage of a pipeline; nullopt: all.
  std::optional<StageLayers> layers = {};
};

// One kind of program. `problem` says why there is none; empty: it is the same as another kind.
Synthesised baseline(const Request& request, Baseline which, std::string& problem);

// What is added to the published rules.
enum class Addition : uint8_t {
  contracted,  // forward products whose contracted dimension is cut
  heads,       // attention cut by heads
  statistics,  // losses, softmaxes and norms whose classes or columns are cut, which exchange statistics
  gathers      // padded or broadcast, gather by gather, in place of one way for all
};
std::string_view name_of(Addition addition);
inline constexpr Addition kAdditions[] = {Addition::contracted, Addition::heads, Addition::statistics,
                                          Addition::gathers};

// What each addition gains: alone, beyond the published rules, and what is lost without it alone.
struct Gain {
  Addition addition;
  Ticks alone = kNever, without = kNever;  // costs of the best programs
};
struct Gains {
  Ticks published = kNever, all = kNever;  // with no addition, and with all
  std::vector<Gain> of;
};
Gains gains_of(const Request& request);

struct Answer {
  Synthesised best;
  // Cheap ones with the same shares and with proportional ones, when gradients are summed beside the backward
  // pass. Their costs are sums all the same.
  std::vector<Synthesised> overlapping;
  Ticks bound = 0;             // no program costs less, whatever its shares
  Ticks bound_for_shares = 0;  // nor with these shares
  double search_seconds = 0;   // of all searches
  int searches = 0;
  bool is_wide = false;  // the graph is (search.h)
};
Answer synthesise(const Request& request);
// Its program alone, without a bound, then those that may be faster as they are run: the overlapping ones,
// and proportional data parallelism. None where there is no program. `is_wide`: set where the graph is.
std::vector<Synthesised> programs_to_try(const Request& request, bool overlapping, bool* is_wide = nullptr);

// A plan of one stage over all devices of the group.
Plan to_plan(const Request& request, const ShardingProgram& program);

}  // namespace het::planner::hap
