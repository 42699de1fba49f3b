#include "dovetail/data/text/loader.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "dovetail/base/error.h"
#include "dovetail/base/machine.h"
#include "dovetail/base/rng.h"
#include "dovetail/data/files/prefetch.h"
#include "dovetail/data/text/sampling.h"

namespace dovetail::data {
namespace {

namespace fs = std::filesystem;

struct Source {
  std::string path;
  TokenStore store;
  WindowOrder windows;
};

/// Mixture that starts at a step. `earlier[j]` is the number of earlier samples of source j.
struct Phase {
  int64_t first_step = 0;
  std::vector<size_t> sources;  ///< source index of each entry of the mixture
  std::vector<double> weights;
  MixtureOrder order = MixtureOrder({});
  std::vector<uint64_t> earlier;  ///< for each entry
};

}  // namespace

/// Produces samples, as a pure function of the step, and owns the thread that prefetches them.
struct Loader::State {
  LoaderOptions options;
  int64_t begin, end;  ///< samples of this rank in each step
  std::vector<std::unique_ptr<Source>> sources;
  std::vector<Phase> phases;

  State(const DataConfig& config, const LoaderOptions& given)
      : options(given),
        begin(given.batch * given.rank / given.world),
        end(given.batch * (given.rank + 1) / given.world) {
    DOVETAIL_CHECK(options.batch > 0 && options.context > 0 && options.total_steps > 0,
                   "batch {}, context {}, {} steps", options.batch, options.context,
                   options.total_steps);
    DOVETAIL_CHECK(options.rank >= 0 && options.rank < options.world, "rank {} of {}", options.rank,
                   options.world);
    std::vector<SourceConfig> first = config.mixture;
    if (first.empty()) first.push_back({config.path, 1.0});
    add_phase(0.0, first, "data.mixture");
    double from = 0;
    for (const PhaseConfig& phase : config.phase) {
      user_check(phase.from > from, "data.phase: from = {} does not come after {}", phase.from,
                 from);
      user_check(!phase.mixture.empty(), "data.phase: the phase from {} on has no mixture",
                 phase.from);
      from = phase.from;
      add_phase(from, phase.mixture, "data.phase");
    }
    count_earlier_samples();
  }

  size_t source_index(const std::string& path) {
    std::error_code error;
    for (size_t i = 0; i < sources.size(); ++i)
      if (fs::equivalent(sources[i]->path, path, error)) return i;
    TokenStore store(path);
    if (!sources.empty() &&
        (store.tokenizer().kind() != sources[0]->store.tokenizer().kind() ||
         store.tokenizer().serialized() != sources[0]->store.tokenizer().serialized()))
      throw UserError(fmt::format("{} and {} have different tokenizers", sources[0]->path, path),
                      "prepare one with the tokenizer of the other: data.tokenizer.path");
    const uint64_t seed = mix_seed(options.seed, sources.size());
    WindowOrder windows(seed, store.num_tokens(Split::kTrain), options.context, path);
    sources.push_back(std::make_unique<Source>(Source{path, std::move(store), windows}));
    return sources.size() - 1;
  }

  void add_phase(double from, const std::vector<SourceConfig>& mixture, const char* key) {
    Phase phase;
    phase.first_step =
        static_cast<int64_t>(std::ceil(from * static_cast<double>(options.total_steps)));
    for (const SourceConfig& entry : mixture) {
      user_check(std::isfinite(entry.weight) && entry.weight > 0,
                 "{}: the weight of {} is {}, not positive", key, entry.path, entry.weight);
      const size_t source = source_index(entry.path);
      user_check(
          std::find(phase.sources.begin(), phase.sources.end(), source) == phase.sources.end(),
          "{}: {} is in one mixture twice; add up its weights", key, entry.path);
      phase.sources.push_back(source);
      phase.weights.push_back(entry.weight);
    }
    phase.order = MixtureOrder(phase.weights);
    // A phase that begins at the same step replaces the previous one.
    if (!phases.empty() && phases.back().first_step == phase.first_step) phases.pop_back();
    phases.push_back(std::move(phase));
  }

  void count_earlier_samples() {
    std::vector<uint64_t> drawn(sources.size(), 0);
    for (size_t p = 0; p < phases.size(); ++p) {
      Phase& phase = phases[p];
      for (const size_t source : phase.sources) phase.earlier.push_back(drawn[source]);
      if (p + 1 == phases.size()) break;
      const auto samples =
          static_cast<uint64_t>((phases[p + 1].first_step - phase.first_step) * options.batch);
      for (size_t entry = 0; entry < phase.sources.size(); ++entry)
        drawn[phase.sources[entry]] += phase.order.count(entry, samples);
    }
  }

  const Phase& phase_of(int64_t step) const {
    size_t p = phases.size() - 1;
    while (phases[p].first_step > step) --p;
    return phases[p];
  }

  at::Tensor make(int64_t step) const {
    const int64_t length = options.context + 1;
    at::Tensor tokens = at::empty({end - begin, length}, at::kLong);
    const Phase& phase = phase_of(step);
    const auto first =
        static_cast<uint64_t>(step - phase.first_step) * static_cast<uint64_t>(options.batch);
    for (int64_t i = begin; i < end; ++i) {
      const uint64_t sample = first + static_cast<uint64_t>(i);
      const size_t entry = phase.order.source_of(sample);
      const uint64_t index = phase.earlier[entry] + phase.order.count(entry, sample);
      const Source& source = *sources[phase.sources[entry]];
      source.store.read(Split::kTrain, source.windows.begin(index), length,
                        tokens.mutable_data_ptr<int64_t>() + (i - begin) * length);
    }
    return tokens;
  }

  void start() {
    prefetcher.emplace([this](int64_t step) { return make(step); });
  }

  /// Last member, since its thread uses the others.
  std::optional<Prefetcher<at::Tensor>> prefetcher;
};

Loader::Loader(const DataConfig& config, const LoaderOptions& options)
    : state_(std::make_unique<State>(config, options)) {
  state_->start();
}

Loader::~Loader() = default;

at::Tensor Loader::step(int64_t step) {
  DOVETAIL_CHECK(step >= 0, "step {}", step);
  return state_->prefetcher->take(step);
}

void Loader::set_part(int64_t begin, int64_t end) {
  DOVETAIL_CHECK(begin >= 0 && begin < end && end <= state_->options.batch,
                 "samples [{}, {}) of {}", begin, end, state_->options.batch);
  if (begin == state_->begin && end == state_->end) return;
  state_->prefetcher.reset();
  state_->begin = begin;
  state_->end = end;
  state_->start();
}

const TokenStore& Loader::first_store() const { return state_->sources.front()->store; }

std::string Loader::summary() const {
  std::string lines;
  for (size_t s = 0; s < state_->sources.size(); ++s) {
    const Source& source = *state_->sources[s];
    double weight = 0, samples = 0;
    for (size_t p = 0; p < state_->phases.size(); ++p) {
      const Phase& phase = state_->phases[p];
      const auto entry = static_cast<size_t>(
          std::find(phase.sources.begin(), phase.sources.end(), s) - phase.sources.begin());
      if (entry == phase.sources.size()) continue;
      const int64_t end = p + 1 < state_->phases.size() ? state_->phases[p + 1].first_step
                                                        : state_->options.total_steps;
      const int64_t steps = std::max<int64_t>(0, end - phase.first_step);
      samples += static_cast<double>(
          phase.order.count(entry, static_cast<uint64_t>(steps * state_->options.batch)));
    }
    weight = samples / (static_cast<double>(state_->options.total_steps) *
                        static_cast<double>(state_->options.batch));
    if (!lines.empty()) lines += '\n';
    lines += fmt::format("{}: {} tokens, weight {:.3g}, {:.3g} epochs", source.path,
                         format_count(static_cast<double>(source.store.num_tokens(Split::kTrain))),
                         weight, samples / static_cast<double>(source.windows.windows()));
  }
  return lines;
}

}  // namespace dovetail::data
