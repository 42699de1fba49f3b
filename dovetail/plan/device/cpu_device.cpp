#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "dovetail/base/error.h"
#include "dovetail/base/kept_memory.h"
#include "dovetail/base/machine.h"
#include "dovetail/base/median.h"
#include "dovetail/base/trace.h"
#include "dovetail/plan/device/fingerprint.h"
#include "dovetail/plan/device/host_tier.h"
#include "dovetail/plan/device/paged_memory.h"
#include "dovetail/plan/device/planned_allocator.h"
#include "dovetail/plan/device/step_device.h"
#include "dovetail/plan/model/packing.h"

namespace dovetail::plan {
namespace {

/// Runs matrix products, which dominate most training steps.
class Computing {
 public:
  /// Returns the number of products per second until `done`.
  template <class Done>
  double rate_until(Done&& done) {
    const double start_s = now_seconds();
    int products = 0;
    do {
      at::mm_out(c_, a_, b_);
      ++products;
    } while (!done());
    return products / (now_seconds() - start_s);
  }

 private:
  static constexpr int64_t kWidth = 384;
  at::Tensor a_ = at::ones({kWidth, kWidth}), b_ = at::ones({kWidth, kWidth}),
             c_ = at::empty({kWidth, kWidth});
};
constexpr double kComputedAlone_s = 0.05;
// Minimum slowdown, so that the plan that copies less is preferred of two equally fast ones.
constexpr double kLeastSlowdown = 0.02;

Bandwidth measure_bandwidth(const std::filesystem::path& folder, int64_t bytes, int rounds) {
  DOVETAIL_CHECK(rounds > 0 && bytes > 0, "nothing to measure");
  const Arena arena(bytes);
  std::fill_n(arena.data(), arena.bytes(), std::byte{1});
  HostTier host(folder, arena.bytes());
  host.write(0, arena.data(), arena.bytes());  // touches the pages
  CopyStream stream;
  Computing computing;
  const auto copy = [&](std::vector<double>& seconds, auto&& work) {
    std::atomic<bool> done = false;
    double copied_s = 0;
    stream.enqueue([&] {
      const double start_s = now_seconds();
      work();
      copied_s = now_seconds() - start_s;
      done = true;
    });
    const double rate = computing.rate_until([&] { return done.load(); });
    seconds.push_back(copied_s);
    return rate;
  };
  std::vector<double> out, in, slowdowns;
  for (int round = 0; round < rounds; ++round) {
    const double start_s = now_seconds();
    const double alone =
        computing.rate_until([&] { return now_seconds() - start_s > kComputedAlone_s; });
    const double writing = copy(out, [&] { host.write(0, arena.data(), arena.bytes()); });
    const double reading = copy(in, [&] { host.read(0, arena.data(), arena.bytes()); });
    slowdowns.push_back(std::clamp(1 - (writing + reading) / (2 * alone), kLeastSlowdown, 1.0));
  }
  const auto size = static_cast<double>(arena.bytes());
  return {
      .to_host = size / median(out), .to_device = size / median(in), .slowdown = median(slowdowns)};
}

/// The calling thread computes; a thread for each direction copies.
class CpuStreams : public StepStreams {
 public:
  CpuStreams(const std::filesystem::path& folder, int64_t bytes) : host_(folder, bytes) {}

  void begin(size_t actions, bool) override {
    spans_.assign(actions, {});
    copies_.assign(actions, {});
    last_out_ = last_in_ = 0;
    started_s_ = now_seconds();
  }
  void compute_begins(int action) override { spans_[action].start_s = now_seconds() - started_s_; }
  void compute_ends(int action) override { spans_[action].end_s = now_seconds() - started_s_; }

  void offload(int action, Copy copy) override {
    last_out_ = enqueue(to_host_, action, std::move(copy), [this](const Copy& given) {
      host_.write(given.offset, given.address, given.bytes);
    });
  }
  void prefetch(int action, Copy copy) override {
    last_in_ = enqueue(to_device_, action, std::move(copy), [this](const Copy& given) {
      host_.read(given.offset, given.address, given.bytes);
    });
  }
  void await(int action) override { wait_for(copies_[action]); }

  std::vector<Timeline::Span> end() override {
    to_host_.wait(last_out_);
    to_device_.wait(last_in_);
    return std::move(spans_);
  }
  std::byte* slow_tier() override { return host_.data(); }

 private:
  /// Copy of an action: its thread, and its number there.
  struct Numbered {
    CopyStream* stream = nullptr;
    int64_t number = 0;
  };

  static void wait_for(const Numbered& copy) {
    if (copy.stream != nullptr) copy.stream->wait(copy.number);
  }

  template <class Work>
  int64_t enqueue(CopyStream& stream, int action, Copy copy, Work&& work) {
    std::vector<Numbered> waits;
    for (const int wait : copy.waits) waits.push_back(copies_[wait]);
    const int64_t number =
        stream.enqueue([this, action, waits = std::move(waits), copy = std::move(copy), work] {
          for (const Numbered& wait : waits) wait_for(wait);
          compute_begins(action);
          work(copy);
          compute_ends(action);
        });
    copies_[action] = {&stream, number};
    return number;
  }

  HostTier host_;
  std::vector<Timeline::Span> spans_;
  std::vector<Numbered> copies_;  // per action
  int64_t last_out_ = 0, last_in_ = 0;
  double started_s_ = 0;
  CopyStream to_host_, to_device_;
};

class CpuDevice : public StepDevice {
 public:
  c10::Device device() const override { return c10::kCPU; }
  std::string name() const override { return "CPU"; }
  std::unique_ptr<Region> region(int64_t bytes) const override {
    return std::make_unique<Arena>(bytes);
  }
  std::unique_ptr<StepStreams> streams(const std::filesystem::path& folder,
                                       int64_t bytes) const override {
    return std::make_unique<CpuStreams>(folder, bytes);
  }
  c10::DataPtr own_memory(size_t bytes, const std::filesystem::path& folder) const override {
    try {
      std::optional<PagedAllocations> in_a_file;
      if (!folder.empty()) in_a_file.emplace(folder);
      return c10::GetCPUAllocator()->allocate(bytes);
    } catch (const UserError&) {  // the disk is full: keep the values in plain memory
      return c10::GetDefaultCPUAllocator()->allocate(bytes);
    }
  }
  void copy(void* to, const void* from, size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }
  uint64_t fingerprint(const void* data, int64_t bytes) const override {
    return plan::fingerprint(data, bytes);
  }
  void wait() const override {}
  bool fills_regions_on_write() const override { return true; }
  Bandwidth bandwidth(const std::filesystem::path& folder, int64_t bytes,
                      int rounds) const override {
    return measure_bandwidth(folder, bytes, rounds);
  }
  int64_t held_bytes() const override { return static_cast<int64_t>(resident_bytes()); }
  int64_t peak_held_bytes() const override { return static_cast<int64_t>(peak_resident_bytes()); }
  void reset_peak() const override { reset_peak_resident(); }
  void give_back_freed() const override { give_back_freed_memory(); }
  int64_t least_copied_bytes() const override { return kPagedBytes; }
};

}  // namespace

void Region::drop_all_but(const std::vector<std::pair<int64_t, int64_t>>& kept) {
  int64_t end = 0;
  for (const auto& [offset, bytes] : kept) {
    drop(end, offset - end);
    end = std::max(end, offset + bytes);
  }
  drop(end, this->bytes() - end);
}

const StepDevice& cpu_step_device() {
  static const CpuDevice device;
  return device;
}

}  // namespace dovetail::plan
