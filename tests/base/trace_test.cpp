// ctest-labels: threads
#include "dovetail/base/trace.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "dovetail/base/error.h"
#include "dovetail/base/file.h"
#include "tests/base/temporary_folder.h"

namespace dovetail::trace_test {
namespace {

struct Span {
  std::string name;
  int64_t thread;
  double begin_us, end_us;
  bool holds(const Span& other) const {
    return this != &other && thread == other.thread && begin_us <= other.begin_us &&
           other.end_us <= end_us;
  }
};

// Records what `work` does and reads the file back, with a JSON parser that accepts only JSON.
std::vector<Span> traced(bool aten, const std::function<void()>& work) {
  const test::TemporaryFolder folder;
  start_trace(aten);
  work();
  stop_trace(folder / "trace.json");
  const auto json = nlohmann::json::parse(read_file(folder / "trace.json"));
  std::vector<Span> spans;
  for (const auto& event : json.at("traceEvents")) {
    if (event.at("ph") != "X") continue;
    const double begin = event.at("ts"), duration = event.at("dur");
    EXPECT_GE(duration, 0);
    spans.push_back({event.at("name"), event.at("tid"), begin, begin + duration});
  }
  return spans;
}

int count(const std::vector<Span>& spans, const std::string& name) {
  return static_cast<int>(std::count_if(spans.begin(), spans.end(),
                                        [&](const Span& span) { return span.name == name; }));
}

// Long enough to show in a trace with a resolution of a nanosecond, whatever else the machine does.
void some_work() {
  std::atomic<int> sink{0};
  for (int i = 0; i < 20'000; ++i) sink.fetch_add(i);
}

TEST(Trace, SpansNestAsTheyWereWritten) {
  const auto spans = traced(false, [] {
    const TraceSpan outer("outer");
    for (int i = 0; i < 3; ++i) {
      const TraceSpan inner("inner \"quoted\"");
      some_work();
    }
  });
  ASSERT_EQ(spans.size(), 4U);
  ASSERT_EQ(count(spans, "outer"), 1);
  EXPECT_EQ(count(spans, "inner \"quoted\""), 3);
  const auto outer = std::find_if(spans.begin(), spans.end(),
                                  [](const Span& span) { return span.name == "outer"; });
  for (const Span& span : spans) {
    if (span.name != "outer") {
      EXPECT_TRUE(outer->holds(span));
    }
  }
}

TEST(Trace, RecordsOnlyBetweenStartAndStop) {
  {
    const TraceSpan before("before");
  }
  EXPECT_FALSE(tracing());
  const test::TemporaryFolder folder;
  auto open_at_start = std::make_unique<TraceSpan>("open at start");
  const auto spans = traced(false, [&] {
    EXPECT_TRUE(tracing());
    open_at_start.reset();
    const TraceSpan during("during");
  });
  {
    const TraceSpan after("after");
  }
  ASSERT_EQ(spans.size(), 1U);
  EXPECT_EQ(spans[0].name, "during");
  // A second recording does not hold the first, nor a span that began in the first.
  start_trace(false);
  auto open_at_stop = std::make_unique<TraceSpan>("open at stop");
  stop_trace(folder / "t.json");
  EXPECT_TRUE(traced(false, [&] { open_at_stop.reset(); }).empty());
}

TEST(Trace, TurnsOnOnce) {
  const test::TemporaryFolder folder;
  EXPECT_THROW(stop_trace(folder / "t.json"), InternalError);
  start_trace(false);
  EXPECT_THROW(start_trace(false), InternalError);
  EXPECT_THROW(stop_trace(folder / "none/t.json"), UserError);
  EXPECT_FALSE(tracing());
}

TEST(Trace, RecordsEveryOperatorOnlyWhenAsked) {
  const auto work = [] {
    const auto a = at::ones({8, 8});
    const TraceSpan span("dovetail::step");
    at::mm(a, a).relu_();
  };
  const auto spans = traced(true, work);
  EXPECT_EQ(count(spans, "aten::mm"), 1);
  EXPECT_EQ(count(spans, "aten::relu_"), 1);
  const auto own = traced(false, work);
  ASSERT_EQ(own.size(), 1U);
  EXPECT_EQ(own[0].name, "dovetail::step");
}

TEST(Trace, EachThreadHasALaneAndMayRunOnDuringStop) {
  std::atomic<bool> stop{false};
  std::atomic<int> running{0};
  std::vector<std::thread> threads;
  const auto spans = traced(false, [&] {
    for (int i = 0; i < 3; ++i) {
      threads.emplace_back([&] {
        {
          const TraceSpan span("worker");
        }
        ++running;
        while (!stop) const TraceSpan span("worker");
      });
    }
    while (running < 3) std::this_thread::yield();
    const TraceSpan span("main");
  });
  stop = true;
  for (std::thread& thread : threads) thread.join();
  std::set<int64_t> workers, mains;
  for (const Span& span : spans) (span.name == "main" ? mains : workers).insert(span.thread);
  EXPECT_EQ(workers.size(), 3U);
  EXPECT_EQ(mains.size(), 1U);
  EXPECT_EQ(workers.count(*mains.begin()), 0U);
}

// Direct implementation of the definition. The kind of a moment is the kind of its innermost span.
// Anything within an attention span counts as attention.
TraceShares shares_by_definition(const std::vector<Span>& spans) {
  const std::set<std::string> gemm = {"aten::mm",      "aten::addmm",  "aten::bmm",
                                      "aten::baddbmm", "aten::linear", "aten::matmul",
                                      "dovetail::gemm"};
  const auto is_attention = [](const Span& span) {
    return span.name.find("attention") != span.name.npos ||
           span.name.find("flash") != span.name.npos;
  };
  TraceShares shares;
  for (const Span& span : spans) {
    double self = span.end_us - span.begin_us;
    bool in_attention = is_attention(span);
    for (const Span& other : spans) {
      in_attention = in_attention || (other.holds(span) && is_attention(other));
      if (!span.holds(other)) continue;
      const bool direct = std::none_of(spans.begin(), spans.end(), [&](const Span& middle) {
        return span.holds(middle) && middle.holds(other);
      });
      if (direct) self -= other.end_us - other.begin_us;
    }
    (in_attention                ? shares.attention_s
     : gemm.count(span.name) > 0 ? shares.gemm_s
                                 : shares.other_s) += self * 1e-6;
    shares.total_s += self * 1e-6;
  }
  return shares;
}

void expect_shares(const std::vector<Span>& spans) {
  const TraceShares shares = trace_shares(), expected = shares_by_definition(spans);
  EXPECT_NEAR(shares.gemm_s, expected.gemm_s, 1e-8);
  EXPECT_NEAR(shares.attention_s, expected.attention_s, 1e-8);
  EXPECT_NEAR(shares.other_s, expected.other_s, 1e-8);
  EXPECT_NEAR(shares.total_s, shares.gemm_s + shares.attention_s + shares.other_s, 1e-12);
}

TEST(TraceShares, CountEachMomentOnce) {
  const auto spans = traced(false, [] {
    const TraceSpan step("dovetail::step");
    some_work();
    {
      const TraceSpan linear("dovetail::gemm");
      some_work();
    }
    {
      const TraceSpan attention("dovetail::attention");
      some_work();
      const TraceSpan inner("dovetail::gemm");
      some_work();
      const TraceSpan innermost("dovetail::softmax");
      some_work();
    }
    {
      const TraceSpan gemm("dovetail::gemm");
      const TraceSpan inner("dovetail::quantize");
      some_work();
    }
  });
  expect_shares(spans);
  const TraceShares shares = trace_shares();
  EXPECT_GT(shares.gemm_s, 0);
  EXPECT_GT(shares.attention_s, 0);
  EXPECT_GT(shares.other_s, 0);
}

TEST(TraceShares, AttentionTakesEverythingInIt) {
  traced(false, [] {
    const TraceSpan attention("dovetail::attention");
    const TraceSpan inner("dovetail::gemm");
    some_work();
  });
  const TraceShares shares = trace_shares();
  EXPECT_GT(shares.attention_s, 0);
  EXPECT_EQ(shares.gemm_s, 0);
  EXPECT_EQ(shares.other_s, 0);
}

TEST(TraceShares, OfOperators) {
  const auto spans = traced(true, [] {
    const auto x = at::randn({32, 64}), w = at::randn({64, 64}), b = at::randn({64});
    for (int i = 0; i < 3; ++i) at::linear(x, w, b).relu();
    const auto q = at::randn({1, 2, 16, 8});
    at::scaled_dot_product_attention(q, q, q, {}, 0.0, true);
    at::bmm(at::randn({2, 4, 4}), at::randn({2, 4, 4}));
  });
  EXPECT_EQ(count(spans, "aten::linear"), 3);
  expect_shares(spans);
  const TraceShares shares = trace_shares();
  EXPECT_GT(shares.gemm_s, 0);
  EXPECT_GT(shares.attention_s, 0);
}

TEST(TraceShares, OfNothing) {
  traced(false, [] {});
  EXPECT_EQ(trace_shares().total_s, 0);
}

TEST(Clock, DoesNotGoBack) {
  double last = now_seconds();
  for (int i = 0; i < 1000; ++i) {
    const double now = now_seconds();
    ASSERT_GE(now, last);
    last = now;
  }
}

}  // namespace
}  // namespace dovetail::trace_test
