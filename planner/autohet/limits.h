// The tuning numbers of the search, with their reasons. None is a time, so that the same request gives the
// same plan everywhere. Each inner namespace belongs to the file of its name; what several files use stands
// first. A name that several of these have is written with its namespace.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

namespace het::planner::limits {

// A small cluster: every grouping and every order of stages is tried. One of 8 groups has a few thousand.
inline constexpr int kSmallGroups = 8;  // tensor-parallel groups; of local search: stages
inline constexpr int kSmallLayers = 16;
// A medium one: beyond so many devices one candidate costs too much to try hundreds.
inline constexpr int kMediumDevices = 128;
// Groupings, or orders of stages, that are enumerated where all are wanted: more than a small cluster has.
inline constexpr size_t kAll = 20'000;
// Orders of a composition that are simulated together with other pipelines.
inline constexpr size_t kKeptOrders = 6;
// Moving micro-batches between all pairs of pipelines: beyond so many pipelines balancing them is enough.
inline constexpr size_t kPairedPipelines = 32;

namespace search {

// How much of everything is tried.
struct Effort {
  size_t sketches;  // that become layouts
  size_t of_size;   // of these, of one degree and micro-batch size
  size_t alike;     // of these, of one number of pipelines
  size_t starts;    // layouts that local search starts from
};
inline constexpr Effort kSmallEffort{2000, 1000, 24, 40}, kMediumEffort{400, 40, 10, 5},
    kLargeEffort{24, 6, 2, 2};

// Numbers of pipelines: all up to the first, then an eighth apart. Of more than 48, 40 beside the first 8.
inline constexpr int kAllCounts = 16;
inline constexpr double kCountStep = 1.125;
inline constexpr size_t kMostCounts = 48, kThinnedCounts = 40;
inline constexpr int kUnthinnedCounts = 8;

// Times the best estimate: what is worse is dropped. Of small clusters the bound says least.
inline constexpr double kPromising = 1.6, kPromisingSmall = 4;

// Compositions of the integer program: of up to two nodes (three where there are no more), up to so many
// groups of each, and alone up to 16.
inline constexpr size_t kFewNodes = 3, kColumns = 400;
inline constexpr int kMixedNodes = 2, kMixedGroups = 4, kMixedGroupsOfFew = 5, kGroupsAlone = 16;

inline constexpr size_t kGroupings = 200;  // of few groups in a cluster that is not small
inline constexpr int kDeepest = 64;        // groups of one node that are tried to hold the model alone
// Nodes are left out among the 5 weakest (2^5 subsets), for speed one and only while 70 % of the power
// remains.
inline constexpr size_t kLeftOutNodes = 5;
inline constexpr double kLeastPower = 0.7;
// Optimizer shares go in powers of two, so that numbers of pipelines share solutions; placed state may leave
// a stage less than an even share.
inline constexpr int kMostReplicas = 32;
inline constexpr double kPlacedShares[] = {0.6, 0.3, 0.0};
inline constexpr double kProgramShare = 0.25;  // of the integer program, whose pipelines are not known yet

inline constexpr size_t kFewOrders = 24, kManyOrders = 900;  // of a composition, in large and small clusters
inline constexpr int kDraftRounds = 3;  // micro-batches and cuts in turn: by then they no longer change
inline constexpr int kOfKind = 2;       // candidates of a kind that come first: moves lead them to like plans
inline constexpr size_t kSimulated = 100;   // candidates, after their estimates
inline constexpr double kWorthMoves = 1.2;  // times the best: moves rarely gain more
// Stage-micro-batch pairs that a local search simulates.
inline constexpr int64_t kMoves = 700'000, kMovesSmall = 400'000;
inline constexpr int64_t kJointSimulations = 200'000;   // without contention
inline constexpr int64_t kScheduleSimulations = 5'000;  // the same, of each schedule beside 1F1B
inline constexpr int kWarmups[] = {0, 1, 2, 4, 8};      // of small clusters, whose links may be slow
inline constexpr int kMostWarmup = 2;                   // forwards ahead, in moves of clusters of any size
inline constexpr double kNear = 1.01;                   // times the best: what contention may change

}  // namespace search

namespace compositions {

inline constexpr size_t kFirstOrders = 6, kFirstOrdersSmall = 200;  // until one fits in memory
inline constexpr size_t kRanked = 400;     // drafts that are simulated alone, the best by the bound
inline constexpr double kNearBest = 1.25;  // times the best by the bound: what is worse is not simulated
inline constexpr size_t kClimbed = 12;     // orders whose best draft moves layers
// Where some links have less than half of the bandwidth of others, so many orders of stages are tried.
inline constexpr double kUnevenLinks = 2;
inline constexpr size_t kOrdersOfSlowLinks = 200;

}  // namespace compositions

namespace local {

inline constexpr size_t kExchanged = 24;  // pipelines: beyond, all pairs of groups are too many

}  // namespace local

namespace joint {

inline constexpr double kBoundSlack = 1.1;  // the bound of 1F1B may be this much above the simulator's time
inline constexpr size_t kEnumerated = 20'000;  // cuts of a composition that are held at once
inline constexpr size_t kSimulated = 400;      // of these, simulated alone: the best by the bound
inline constexpr size_t kWhole = 6;            // cuts that are combined when each pipeline keeps its state
inline constexpr int kLeaves = 20000;          // combinations of one split of micro-batches
inline constexpr int kContended = 4;  // a simulation with contention takes as long as so many without
inline constexpr int kAlike = 12;     // a cut is dropped when so many are as fast and have as much room
// Without a plan to beat: rounds with a limit, times the lower bound, that grows until there is a plan.
inline constexpr double kFirstLimit = 1.5, kLimitGrowth = 4;
inline constexpr int kLimitRounds = 4;

}  // namespace joint

namespace anneal {

// A plan that much worse, as a share of its time, is taken once in e times: at first, at last.
inline constexpr double kHot = 0.005, kCold = 0.0002;
inline constexpr double kWork = 1e8;    // of each round, in units of cost_of_step
inline constexpr double kFewest = 150;  // steps of a start: with less, moves among many stages find nothing
inline constexpr double kNear = 1.3;    // times the best: what is worse does not catch up
// As many starts as that in each round, all rounds with as much work: the longer, the fewer.
inline constexpr size_t kRounds[] = {8, 3, 1};

}  // namespace anneal

namespace mix {

inline constexpr int kMostDevices = 64;  // of a cluster
inline constexpr size_t kStarts = 3;     // plans that are tried
inline constexpr int kRounds = 6;        // moves on each, one after the other
inline constexpr int kSimulated = 24;    // candidates of a round that are simulated, best by the bound first
inline constexpr double kBetter = 1e-6;  // by as much, as a share, a plan is better

}  // namespace mix

namespace replan {

inline constexpr size_t kFree = 16;           // groups that are put to use one by one
inline constexpr int64_t kBudget = 400'000;   // stage-micro-batch pairs that are simulated on the way
inline constexpr size_t kStarts = 6;          // repaired plans that are improved
inline constexpr size_t kSwapped = 64;        // stages: beyond, all pairs are too many
inline constexpr size_t kManyMoves = 40'000;  // of a layer: beyond, only neighbours exchange layers

}  // namespace replan

namespace edits {

inline constexpr size_t kPairedStages = 8;  // of a pipeline: beyond, a layer moves to a neighbour alone

}  // namespace edits

namespace refine {

inline constexpr double kGain = 0.004;  // as a share, that an edit has to gain

}  // namespace refine

namespace parts {

// A large cluster that is used well loses by every device that is left out, and a search of a part takes as
// long as that of the whole. Poor: times the lower bound.
inline constexpr double kPoor = 2;
// A cluster with one host less is a part where so few devices are left that every grouping takes little time.
inline constexpr size_t kFewDevices = 6;
inline constexpr double kNearest = 1.03;  // times its lower bound: no plan of a part is nearer
inline constexpr double kNear = 1.1;      // times the best: what is worse does not catch up
// Of a part that is to be nearly as fast: times what it may take at most. Where its best symmetric plan takes
// longer, no search is worth its time.
inline constexpr double kHopeless = 1.5;

}  // namespace parts

namespace stages {

inline constexpr int kExact = 160;         // stage-layer pairs: up to here cuts are exact
inline constexpr double kNearBest = 1.25;  // times the first by the bound: nothing much worse
inline constexpr double kStep = 0.99;      // of the longest stage, where there are many layers
// Beyond, the longest stage may be this much longer than it has to be, for a smaller sum.
inline constexpr double kAllowances[] = {
    1.0, 1.02, 1.06, 1.15, 1.4, 2.5, std::numeric_limits<double>::infinity()};

}  // namespace stages

namespace group {

// Of the integer program over compositions: its worths are estimates, so a near optimum will do.
inline constexpr int kNodes = 300;
inline constexpr double kGap = 0.002;

}  // namespace group

}  // namespace het::planner::limits
