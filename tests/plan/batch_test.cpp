#include "dovetail/plan/record/batch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dovetail/base/error.h"
#include "dovetail/plan/record/step_graph.h"
#include "tests/plan/small_step.h"

namespace dovetail::plan::batch_test {
namespace {

CapturedStep recorded(int64_t batch) {
  SmallStep step(batch);
  return record_step([&] { return step(); }, step.tensors());
}

TEST(Batch, AThirdBatchIsAsItIsRecorded) {
  const CapturedStep four = recorded(4), six = recorded(6), nine = recorded(9);
  const CapturedStep made = at_batch({four, 4}, {six, 6}, 9);
  ASSERT_EQ(made.storages.size(), nine.storages.size());
  for (size_t s = 0; s < nine.storages.size(); ++s) {
    EXPECT_EQ(made.storages[s].name, nine.storages[s].name);
    EXPECT_EQ(made.storages[s].bytes, nine.storages[s].bytes) << nine.storages[s].name;
    EXPECT_EQ(made.storages[s].kind, nine.storages[s].kind);
  }
  ASSERT_EQ(made.operations.size(), nine.operations.size());
  for (size_t o = 0; o < nine.operations.size(); ++o) {
    const auto &a = made.operations[o], &b = nine.operations[o];
    ASSERT_EQ(a.name, b.name);
    for (size_t i = 0; i < a.arguments.size(); ++i)
      EXPECT_EQ(a.arguments[i].uses, b.arguments[i].uses) << a.name;
  }
}

TEST(Batch, GraphsHoldTensorsAndNoScratchOfThisMachine) {
  const CapturedStep four = recorded(4), six = recorded(6);
  const Graph graph = graph_of(at_batch({four, 4}, {six, 6}, 64)).graph,
              small = graph_of(four).graph;
  ASSERT_EQ(graph.nodes.size(), small.nodes.size());
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    EXPECT_EQ(graph.nodes[n].inputs, small.nodes[n].inputs);
    EXPECT_EQ(graph.nodes[n].outputs, small.nodes[n].outputs);
    if (graph.nodes[n].name.starts_with("aten::convolution")) {
      EXPECT_EQ(graph.nodes[n].algorithms[0].workspace_bytes, 0) << graph.nodes[n].name;
    }
  }
}

TEST(Batch, RefusesWhatNoLineExtends) {
  const CapturedStep four = recorded(4), six = recorded(6);
  EXPECT_THROW(at_batch({four, 4}, {four, 4}, 8), UserError);
  EXPECT_THROW(at_batch({four, 4}, {six, 6}, 0), UserError);
  // Bytes of the two do not differ by a multiple of 7.
  EXPECT_THROW(at_batch({four, 4}, {six, 11}, 8), UserError);
  CapturedStep other = six;
  other.operations[3].name = "aten::other";
  EXPECT_THROW(at_batch({four, 4}, {other, 6}, 8), UserError);
  other = six;
  other.operations.pop_back();
  EXPECT_THROW(at_batch({four, 4}, {other, 6}, 8), UserError);
}

}  // namespace
}  // namespace dovetail::plan::batch_test
