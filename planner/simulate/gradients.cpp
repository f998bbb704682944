// The end of a step: gradients are exchanged layer by layer, beside the backward pass as far as they are
// ready; then the update; then, where optimizer state is sharded, weights are gathered.
//
// Who exchanges what is in exchange.h. Where holders share a layer differently a rank packs what it
// exchanges: its bytes are read and written before, and once more after. Sharded optimizer state is then kept
// whole.
//
// A parameter that several layers share is summed by all stages that have one of them, when the last of their
// backwards is over, where these are not the same stage of each pipeline; else with the first of its layers.
//
// Exchanges of different layers that pass one network interface at the same time share it (sharing.h). A
// device group has one exchange of layers at a time, and beside it one of a shared parameter.
#include <algorithm>

#include "planner/simulate/exchange.h"
#include "planner/simulate/sharing.h"
#include "planner/simulate/state.h"

namespace het::planner {
namespace {

class FinishStep {
 public:
  FinishStep(SimulatorState& state, double compute_end, Simulation& result)
      : state_(state),
        costs_(state.costs),
        pipelines_(state.layout->pipelines),
        replicas_(state.layout->pipelines.size()),
        compute_end_(compute_end),
        result_(result),
        holder_(state.holder) {}

  double run() {
    find_holders();
    find_shares();
    exchange_gradients();
    const double end = update();
    return gather(end);
  }

 private:
  // Layers with the same holders, a stage of each pipeline; or a shared parameter, whose holders are others.
  struct Segment {
    std::vector<LayerHolder> holders;
    std::vector<int> at;          // state_.at() of each
    std::vector<int> streams;     // of each: SimulatorState::stream_free
    RingGroup group;              // who exchanges them
    int parts = -1;               // of parts_ instead, where a holder has a TensorGroup
    std::vector<int> interfaces;  // of all holders, each once
  };
  // A shared parameter that has a segment.
  struct Apart {
    size_t shared, segment;
  };
  bool same_holders(size_t a, size_t b) const {
    const auto at_a = holder_.begin() + static_cast<std::ptrdiff_t>(a * replicas_);
    return std::equal(at_a, at_a + static_cast<std::ptrdiff_t>(replicas_),
                      holder_.begin() + static_cast<std::ptrdiff_t>(b * replicas_));
  }
  const StageLayout& stage_of(const LayerHolder& holder) const {
    return pipelines_[holder.pipeline].stages[holder.stage];
  }
  // What layers [first, end) exchange.
  ExchangeElements elements_of(size_t first, size_t end) const {
    ExchangeElements elements{costs_.parameters[end] - costs_.parameters[first],
                              costs_.whole_parameters[end] - costs_.whole_parameters[first]};
    for (const size_t i : with_first_layer_) {
      const SharedParameter& shared = costs_.shared[i];
      const auto layer = static_cast<size_t>(shared.layers[0]);
      if (layer < first || layer >= end) continue;
      elements.all += shared.parameters;
      elements.whole += shared.whole_parameters;
    }
    return elements;
  }

  double gradient_ready(const PipelineState& pipeline, const StageLayout& stage, size_t s, int layer) const;
  void find_holders();
  void find_shares();
  void find_shared_parameters();
  double update_seconds(const StageLayout& stage) const;
  Segment segment_of(std::vector<LayerHolder> holders);
  double unevenness(const Segment& segment, CollectiveKind collective) const;
  void count_exposed(const Segment& segment, double ready, double end, SimEvent::Kind kind);
  void exchange_all();
  bool shares_interfaces();
  void finish(const SharedFlow& flow, size_t index);
  void exchange(size_t segment, int layer, const ExchangeElements& elements, CollectiveKind collective,
                double parameter_bytes, double earliest, SimEvent::Kind kind);
  void exchange_layers(size_t first, size_t end, CollectiveKind collective, double parameter_bytes,
                       double earliest, SimEvent::Kind kind);
  void exchange_shared(const Apart& apart, CollectiveKind collective, double parameter_bytes, double earliest,
                       SimEvent::Kind kind);
  double pack(const ExchangeParts& parts, const Segment& segment, double bytes_of_divided,
              double bytes_of_whole);
  double compute_end_of(const Segment& segment) const;
  void exchange_gradients();
  double all_norms(double reduced);
  double update();
  double gather(double updated);

  SimulatorState& state_;
  const CostTable& costs_;
  const std::vector<PipelineLayout>& pipelines_;
  size_t replicas_;
  double compute_end_;
  Simulation& result_;
  Exchanges exchanges_{state_};
  // [layer * replicas + pipeline] stage of each pipeline that holds a layer; of state_, to be used again
  std::vector<int>& holder_;
  std::vector<double> ready_;    // of each layer
  std::vector<size_t> segment_;  // of each layer
  std::vector<Segment> segments_;
  std::vector<Apart> apart_;
  std::vector<size_t> with_first_layer_;  // shared parameters that have no segment
  std::vector<ExchangeParts> parts_;
  std::vector<ExchangeMember> members_;
  // Exchanges of one kind that are to be made, their segments and first layers; and the order in which they
  // ended.
  struct Exchanged {
    size_t segment;
    int layer;
  };
  std::vector<SharedFlow> flows_;
  std::vector<Exchanged> exchanged_;
  std::vector<size_t> order_ended_;
  SimEvent::Kind kind_ = SimEvent::Kind::reduce;
  double known_ = 0;             // when all ranks know the norms; mesh alone
  std::vector<double> updated_;  // when each device group has updated, as SimulatorState::counted_until
};

// When the last micro-batch has run backward through `layer`, which is in stage s.
double FinishStep::gradient_ready(const PipelineState& pipeline, const StageLayout& stage, size_t s,
                                  int layer) const {
  const NodeCosts& node = state_.pace_of(stage);
  const int end = stage.first + stage.layers;
  const auto l = static_cast<size_t>(layer), last = static_cast<size_t>(end);
  double seconds = node.weight[last] - node.weight[l];
  if (state_.layout->schedule != Schedule::split_backward)
    seconds +=
        node.input[last] - node.input[l] + (stage.recompute ? node.recompute[last] - node.recompute[l] : 0);
  return pipeline.stages[s].last_start +
         seconds * state_.pace_factor(static_cast<size_t>(pipeline.source), s);
}

void FinishStep::find_holders() {
  const int layers = costs_.layers;
  holder_.resize(replicas_ * static_cast<size_t>(layers));
  ready_.assign(static_cast<size_t>(layers), 0);
  for (size_t p = 0; p < replicas_; ++p)
    for (size_t s = 0; s < pipelines_[p].stages.size(); ++s) {
      const StageLayout& stage = pipelines_[p].stages[s];
      const PipelineState& pipeline = state_.class_at(p);
      for (int layer = stage.first; layer < stage.first + stage.layers; ++layer) {
        const auto l = static_cast<size_t>(layer);
        holder_[l * replicas_ + p] = static_cast<int>(s);
        ready_[l] = std::max(ready_[l], gradient_ready(pipeline, stage, s, layer));
      }
    }
}

// Who exchanges each layer and shared parameter, and what of its optimizer state each holder has and updates.
void FinishStep::find_shares() {
  const auto layers = static_cast<size_t>(costs_.layers);
  segment_.resize(layers);
  state_.layer_shares.assign(layers, 1);
  for (size_t first = 0, end = 0; first < layers; first = end) {
    for (end = first + 1; end < layers && same_holders(first, end);) ++end;
    std::fill(segment_.begin() + static_cast<std::ptrdiff_t>(first),
              segment_.begin() + static_cast<std::ptrdiff_t>(end), segments_.size());
    std::vector<LayerHolder> holders;
    double shares = 0;
    for (size_t p = 0; p < replicas_; ++p) {
      holders.push_back({p, static_cast<size_t>(holder_[first * replicas_ + p])});
      shares += stage_of(holders.back()).share;
    }
    for (size_t l = first; l < end; ++l) state_.layer_shares[l] = shares;
    segments_.push_back(segment_of(std::move(holders)));
  }
  find_shared_parameters();
  for (size_t p = 0; p < replicas_; ++p)
    for (size_t s = 0; s < pipelines_[p].stages.size(); ++s) {
      const StageLayout& stage = pipelines_[p].stages[s];
      state_.optimizer_bytes[state_.at(p, s)] =
          state_.optimizer_elements(stage, costs_) * costs_.optimizer_bytes;
      state_.update_seconds[state_.at(p, s)] = update_seconds(stage);
    }
}

void FinishStep::find_shared_parameters() {
  state_.shared_shares.assign(costs_.shared.size(), 0);
  for (size_t i = 0; i < costs_.shared.size(); ++i) {
    const SharedParameter& shared = costs_.shared[i];
    std::vector<LayerHolder> holders;
    for (size_t p = 0; p < replicas_; ++p) {
      const size_t before = holders.size(), workers = state_.class_at(p).workers.size();
      for (const int layer : shared.layers) {
        const auto stage = static_cast<size_t>(holder_[static_cast<size_t>(layer) * replicas_ + p]);
        const bool known =
            std::any_of(holders.begin() + static_cast<std::ptrdiff_t>(before), holders.end(),
                        [&](const LayerHolder& one) { return one.stage % workers == stage % workers; });
        if (!known) holders.push_back({p, stage});
      }
    }
    for (const LayerHolder& holder : holders) state_.shared_shares[i] += stage_of(holder).share;
    if (holders.size() == replicas_ || !shared.trained) {
      with_first_layer_.push_back(i);
      continue;
    }
    apart_.push_back({i, segments_.size()});
    segments_.push_back(segment_of(std::move(holders)));
    // A communicator apart, beside those of layers; in a mesh all that a device exchanges goes one way.
    if (!costs_.mesh)
      for (int& stream : segments_.back().streams) stream += static_cast<int>(state_.synced.size());
  }
}

// Of one device of a stage. What a layer takes is divided by parameters; shared ones are updated once.
double FinishStep::update_seconds(const StageLayout& stage) const {
  const std::vector<double>& update = state_.pace_of(stage).update;
  const auto first = static_cast<size_t>(stage.first), end = first + static_cast<size_t>(stage.layers);
  if (costs_.shared.empty() && !state_.layout->sharded_optimizer) return update[end] - update[first];
  std::vector<double> pace;  // of each layer: seconds of one element
  double seconds = 0;
  for (size_t l = first; l < end; ++l) {
    const double own = costs_.parameters[l + 1] - costs_.parameters[l];
    double elements = own;
    for (const SharedParameter& shared : costs_.shared)
      if (shared.is_used_in(static_cast<int>(l), static_cast<int>(l) + 1)) elements += shared.parameters;
    pace.push_back(elements > 0 ? (update[l + 1] - update[l]) / elements : 0);
    seconds += state_.optimizer_part(stage, state_.layer_shares[l]) * (update[l + 1] - update[l]) *
               (elements > 0 ? own / elements : 1);
  }
  for (size_t i = 0; i < costs_.shared.size(); ++i) {
    const int layer = costs_.shared[i].first_user(stage.first, static_cast<int>(end));
    if (layer < 0) continue;
    seconds += state_.optimizer_part(stage, state_.shared_shares[i]) * costs_.shared[i].parameters *
               pace[static_cast<size_t>(layer) - first];
  }
  return seconds;
}

FinishStep::Segment FinishStep::segment_of(std::vector<LayerHolder> holders) {
  Segment segment;
  segment.holders = std::move(holders);
  members_.clear();
  for (const LayerHolder& holder : segment.holders) {
    const StageLayout& stage = stage_of(holder);
    const size_t at = state_.at(holder.pipeline, holder.stage);
    segment.at.push_back(static_cast<int>(at));
    segment.streams.push_back(static_cast<int>(at));
    if (stage.group >= 0) segment.parts = static_cast<int>(parts_.size());
    members_.push_back({{stage.node, stage.host}, state_.stage_interfaces[at], costs_.tensor});
    state_.each_interface(holder.pipeline, holder.stage,
                          [&](int interface) { segment.interfaces.push_back(interface); });
  }
  std::sort(segment.interfaces.begin(), segment.interfaces.end());
  segment.interfaces.erase(std::unique(segment.interfaces.begin(), segment.interfaces.end()),
                           segment.interfaces.end());
  if (segment.parts >= 0)
    parts_.push_back(exchanges_.parts_of(segment.holders));
  else
    segment.group = exchanges_.group_of(members_);
  return segment;
}

// How many times as long as with equal blocks a collective takes whose blocks are the optimizer shares of the
// holders. With n holders, p having the part w_p: in a mesh the busiest way carries
// max((n-1) w_p, 1 - w_p) of the bytes, out of the owner of the largest block or into that of the smallest;
// in a ring 1 - w_p. With equal blocks both carry (n-1)/n.
double FinishStep::unevenness(const Segment& segment, CollectiveKind collective) const {
  if (collective == CollectiveKind::all_reduce || segment.holders.size() < 2) return 1;
  const auto n = static_cast<double>(segment.holders.size());
  double all = 0, most = 0;
  for (const LayerHolder& holder : segment.holders) all += stage_of(holder).share;
  for (const LayerHolder& holder : segment.holders) {
    const double part = stage_of(holder).share / all;
    most = std::max({most, 1 - part, costs_.mesh ? (n - 1) * part : 0});
  }
  return most * n / (n - 1);
}

// What the holders spend on an exchange that all of them are ready for at `ready`, after their
// last backward and beside none that was counted: waits for a port count, waits for other holders do not.
void FinishStep::count_exposed(const Segment& segment, double ready, double end, SimEvent::Kind kind) {
  for (const auto& [p, stage] : segment.holders) {
    const size_t group = state_.at(p, stage % state_.class_at(p).workers.size());
    double& until = state_.counted_until[group];
    double& sum = (kind == SimEvent::Kind::reduce ? state_.exposed_exchange : state_.exposed_gather)[group];
    sum += std::max(0.0, end - std::max(ready, until));
    until = std::max(until, end);
  }
}

// All that were added; one at a time in each stage.
void FinishStep::exchange_all() {
  order_ended_.clear();
  if (shares_interfaces()) {
    for (SharedFlow& flow : flows_)
      for (size_t h = 0; h < flow.count; ++h)
        flow.earliest = std::max(flow.earliest, state_.stream_free[static_cast<size_t>(flow.streams[h])]);
    state_.sharing.run(flows_, state_.stream_free.size(), state_.capacity);
    order_ended_ = state_.sharing.ended();
  } else {
    for (size_t f = 0; f < flows_.size(); ++f) {
      SharedFlow& flow = flows_[f];
      flow.start = flow.earliest;
      for (size_t h = 0; h < flow.count; ++h)
        flow.start = std::max(flow.start, state_.stream_free[static_cast<size_t>(flow.streams[h])]);
      flow.end = flow.start + flow.fixed + flow.wire;
      for (size_t h = 0; h < flow.count; ++h)
        state_.stream_free[static_cast<size_t>(flow.streams[h])] = flow.end;
      order_ended_.push_back(f);
    }
  }
  for (const size_t f : order_ended_) finish(flows_[f], f);
  flows_.clear();
  exchanged_.clear();
}

// Whether exchanges with different holders pass one interface.
bool FinishStep::shares_interfaces() {
  std::vector<int>& user = state_.out_users;  // a segment
  user.assign(static_cast<size_t>(state_.interfaces), -1);
  for (size_t f = 0; f < flows_.size(); ++f)
    for (const int interface : *flows_[f].interfaces) {
      const int own = static_cast<int>(exchanged_[f].segment);
      int& known = user[static_cast<size_t>(interface)];
      if (known >= 0 && known != own) return true;
      known = own;
    }
  return false;
}

void FinishStep::finish(const SharedFlow& flow, size_t index) {
  const auto& [number, layer] = exchanged_[index];
  const Segment& segment = segments_[number];
  if (state_.options.details) {
    double ready = flow.earliest;
    for (size_t h = 0; kind_ == SimEvent::Kind::gather && h < flow.count; ++h)
      ready = std::max(ready, updated_[static_cast<size_t>(segment.at[h])]);
    count_exposed(segment, ready, flow.end, kind_);
  }
  for (size_t h = 0; h < flow.count; ++h) {
    double& stream = state_.stream_free[static_cast<size_t>(flow.streams[h])];
    double& synced = state_.synced[static_cast<size_t>(segment.at[h])];
    stream = std::max(stream, flow.end);
    synced = std::max(synced, flow.end);
    if (state_.options.events)
      state_.events.push_back({kind_, static_cast<int>(segment.holders[h].pipeline),
                               static_cast<int>(segment.holders[h].stage), layer, flow.start, flow.end});
  }
}

// Packing and unpacking of what is exchanged in pieces; returns the longest of the holders. Each byte is read
// and written before, and once more after.
double FinishStep::pack(const ExchangeParts& parts, const Segment& segment, double divided_bytes,
                        double whole_bytes) {
  double longest = 0;
  size_t rank = 0;
  for (const LayerHolder& holder : segment.holders) {
    const StageLayout& stage = stage_of(holder);
    double most = 0;
    for (const size_t end = rank + shares_of(*state_.layout, stage).size(); rank < end; ++rank) {
      const NodeCosts& node = costs_.nodes[static_cast<size_t>(parts.places[rank].node)];
      const double bytes = parts.divided[rank] * divided_bytes + parts.whole[rank] * whole_bytes;
      most = std::max(most, 4 * bytes / node.memory_bytes_per_second);
      int pieces = 0;
      for (const ExchangeParts::Part& part : parts.parts)
        pieces += (part.divided * divided_bytes + part.whole * whole_bytes > 0) &&
                  std::find(part.ranks.begin(), part.ranks.end(), rank) != part.ranks.end();
      result_.pieces = std::max(result_.pieces, pieces);
    }
    double& all = state_.packing_seconds[state_.at(holder.pipeline, holder.stage)];
    all += most;
    result_.packing_seconds = std::max(result_.packing_seconds, all);
    longest = std::max(longest, most);
  }
  return longest;
}

// Of `layer` and perhaps of layers after it, or of a parameter that it shares with others; begins at
// `earliest` or later.
void FinishStep::exchange(size_t number, int layer, const ExchangeElements& elements,
                          CollectiveKind collective, double parameter_bytes, double earliest,
                          SimEvent::Kind kind) {
  static const std::vector<int> kNone;
  const Segment& segment = segments_[number];
  const double as_even = parameter_bytes * unevenness(segment, collective);
  ExchangeSeconds seconds;
  if (segment.parts < 0) {
    // Each device of a stage is in a communicator of its rank; these share the stage's interfaces.
    seconds = exchanges_.group_seconds(segment.group, collective, costs_.tensor, elements.all * as_even);
  } else {
    const ExchangeParts& parts = parts_[static_cast<size_t>(segment.parts)];
    seconds = exchanges_.seconds_of(parts, collective, elements, as_even);
    if (!parts.alike)
      seconds.fixed += pack(parts, segment, (elements.all - elements.whole) * costs_.tensor * parameter_bytes,
                            elements.whole * parameter_bytes);
  }
  flows_.push_back({earliest, seconds.fixed, seconds.wire, segment.streams.data(), segment.streams.size(),
                    seconds.crosses ? &segment.interfaces : &kNone, seconds.rate, seconds.link, 0, 0});
  exchanged_.push_back({number, layer});
  kind_ = kind;
}

// Of layers [first, end), which have the same holders.
void FinishStep::exchange_layers(size_t first, size_t end, CollectiveKind collective, double parameter_bytes,
                                 double earliest, SimEvent::Kind kind) {
  exchange(segment_[first], static_cast<int>(first), elements_of(first, end), collective, parameter_bytes,
           earliest, kind);
}

void FinishStep::exchange_shared(const Apart& apart, CollectiveKind collective, double parameter_bytes,
                                 double earliest, SimEvent::Kind kind) {
  const SharedParameter& shared = costs_.shared[apart.shared];
  // All of it is trained; what is exchanged is counted as if a part of all parameters were.
  exchange(apart.segment, shared.layers[0], {shared.parameters, shared.whole_parameters}, collective,
           parameter_bytes / costs_.trained_share, earliest, kind);
}

// When the last backward of all holders is over.
double FinishStep::compute_end_of(const Segment& segment) const {
  double end = 0;
  for (const auto& [p, stage] : segment.holders) {
    const PipelineState& pipeline = state_.class_at(p);
    end = std::max(end, pipeline.workers[stage % pipeline.workers.size()].end);
  }
  return end;
}

void FinishStep::exchange_gradients() {
  if (replicas_ < 2 && apart_.empty()) return;
  for (size_t p = 0; p < replicas_; ++p)
    for (size_t e = 0; e < state_.class_at(p).workers.size(); ++e)
      state_.counted_until[state_.at(p, e)] = state_.class_at(p).workers[e].end;
  const auto layers = static_cast<size_t>(costs_.layers);
  const CollectiveKind sum =
      state_.layout->sharded_optimizer ? CollectiveKind::reduce_scatter : CollectiveKind::all_reduce;
  const double bytes = costs_.gradient_bytes;
  if (state_.options.runtime.late_reduction) {
    // The last layers are complete first.
    for (size_t end = layers, first = 0; end > 0 && replicas_ > 1; end = first) {
      for (first = end - 1; first > 0 && same_holders(first - 1, end - 1);) --first;
      exchange_layers(first, end, sum, bytes, compute_end_of(segments_[segment_[first]]),
                      SimEvent::Kind::reduce);
    }
    for (const Apart& apart : apart_)
      exchange_shared(apart, sum, bytes, compute_end_of(segments_[apart.segment]), SimEvent::Kind::reduce);
  } else {
    struct Ready {
      double time;
      size_t layer;
      const Apart* apart;
    };
    std::vector<Ready> order;
    for (size_t l = layers; l-- > 0 && replicas_ > 1;) order.push_back({ready_[l], l, nullptr});
    for (const Apart& apart : apart_) {
      Ready ready{0, 0, &apart};
      for (const int layer : costs_.shared[apart.shared].layers)
        ready.time = std::max(ready.time, ready_[static_cast<size_t>(layer)]);
      order.push_back(ready);
    }
    std::stable_sort(order.begin(), order.end(),
                     [](const Ready& a, const Ready& b) { return a.time < b.time; });
    for (const Ready& ready : order)
      if (ready.apart != nullptr)
        exchange_shared(*ready.apart, sum, bytes, ready.time, SimEvent::Kind::reduce);
      else
        exchange_layers(ready.layer, ready.layer + 1, sum, bytes, ready.time, SimEvent::Kind::reduce);
  }
  exchange_all();
}

// In a mesh latencies are worth counting: no rank updates before every rank has the norms of all ranks'
// gradients.
double FinishStep::all_norms(double reduced) {
  members_.clear();
  for (const PipelineLayout& pipeline : pipelines_)
    for (size_t e = 0; e < pipeline.stages.size() / static_cast<size_t>(state_.layout->chunks); ++e) {
      for (const DevicePlace& place : places_of(*state_.layout, pipeline.stages[e]))
        members_.push_back({place, {}, 1});
    }
  return reduced + collective_seconds(CollectiveKind::all_gather, true, exchanges_.group_of(members_).mesh,
                                      static_cast<int>(members_.size()), 0);
}

// From when each device group has its sums; returns when the last has updated.
double FinishStep::update() {
  std::vector<double> summed;
  double end = compute_end_, reduced = compute_end_;
  for (size_t p = 0; p < replicas_; ++p) {
    const PipelineState& pipeline = state_.class_at(p);
    const size_t workers = pipeline.workers.size();
    for (size_t e = 0; e < workers; ++e) {
      summed.push_back(pipeline.workers[e].end);
      for (size_t s = e; s < pipeline.stages.size(); s += workers)
        summed.back() = std::max(summed.back(), state_.synced[state_.at(p, s)]);
      reduced = std::max(reduced, summed.back());
    }
  }
  const double known = costs_.mesh ? all_norms(reduced) : 0;
  auto begins = summed.begin();
  for (size_t p = 0; p < replicas_; ++p) {
    const PipelineState& pipeline = state_.class_at(p);
    const size_t workers = pipeline.workers.size();
    for (size_t e = 0; e < workers; ++e) {
      const double start = std::max(*begins++, known);
      double seconds = 0;
      for (size_t s = e; s < pipeline.stages.size(); s += workers)
        seconds += state_.update_seconds[state_.at(p, s)];
      for (size_t s = e; s < pipeline.stages.size(); s += workers) {
        const size_t at = state_.at(p, s);
        state_.synced[at] = state_.stream_free[at] = state_.stream_free[at + state_.synced.size()] =
            start + seconds;
      }
      state_.counted_until[state_.at(p, e)] = start + seconds;
      if (state_.options.events)
        state_.events.push_back(
            {SimEvent::Kind::update, static_cast<int>(p), static_cast<int>(e), 0, start, start + seconds});
      result_.update_seconds = std::max(result_.update_seconds, seconds);
      end = std::max(end, start + seconds);
    }
  }
  known_ = std::max(reduced, known);
  return end;
}

// Sharded weights go back to all that hold the layer; returns the end of the step.
double FinishStep::gather(double updated) {
  double end = updated;
  updated_ = state_.synced;
  if (state_.layout->sharded_optimizer && (replicas_ > 1 || !apart_.empty())) {
    for (size_t l = 0; l < static_cast<size_t>(costs_.layers) && replicas_ > 1; ++l)
      exchange_layers(l, l + 1, CollectiveKind::all_gather, costs_.gathered_bytes, 0, SimEvent::Kind::gather);
    for (const Apart& apart : apart_)
      exchange_shared(apart, CollectiveKind::all_gather, costs_.gathered_bytes, 0, SimEvent::Kind::gather);
    exchange_all();
    for (const double time : state_.synced) end = std::max(end, time);
  }
  result_.exposed_seconds = known_ - compute_end_ + end - updated;
  return end;
}

}  // namespace

double finish_step(SimulatorState& state, double compute_end, Simulation& result) {
  return FinishStep(state, compute_end, result).run();
}

}  // namespace het::planner
