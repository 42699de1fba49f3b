#pragma once

#include <gtest/gtest.h>
#include <torch/types.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "dovetail/base/file.h"
#include "dovetail/base/rng.h"
#include "dovetail/io/safetensors.h"
#include "dovetail/models/recommender.h"
#include "small_models.h"

/// Small recommenders of all models, and what recommender_oracle.py computes for them.
namespace dovetail::models::oracle {

inline constexpr int64_t kSamples = 6, kLength = 5;

struct Case {
  std::string name;
  RecommenderConfig config;
  RecommenderInputs inputs;
};

inline RecommenderConfig config_of(const std::string& model) {
  RecommenderConfig config;
  config.model = model;
  config.dim = 3;
  config.deep = {13, 8};  // some units are dead
  return config;
}

inline std::vector<Case> cases() {
  // Two sequences share tables with features, the third one tells of the events alone.
  const RecommenderInputs histories = {
      .dense = 2, .sparse = 4, .sequences = {{3}, {-1}, {0}}, .length = kLength};
  Case din = {"din", config_of("din"), histories}, dien = {"dien", config_of("dien"), histories},
       plain = {"dien_without_auxiliary", config_of("dien"), histories},
       can = {"can", config_of("can"), histories},
       mmoe = {"mmoe", config_of("mmoe"), {.dense = 2, .sparse = 4, .tasks = 3}};
  din.config.attention = {6, 5};
  dien.config.interest = 8;
  dien.config.auxiliary = {6, 5};
  dien.config.auxiliary_weight = 0.7;
  plain.config.interest = 5;
  plain.config.auxiliary_weight = 0;
  can.config.micro = {4, 3, 2};
  can.inputs.co_actions = {{3, 0}, {1, 1}};
  mmoe.config.experts = 3;
  mmoe.config.expert = {9, 5};
  std::vector<Case> cases = {din, dien, plain, can, mmoe};
  for (const char* name : {"wide_deep", "deepfm", "dlrm", "dcnv2"})
    cases.push_back({name, config_of(name), {.dense = 2, .sparse = 4}});
  cases[7].config.bottom = {6};
  cases.push_back(cases[8]);
  cases[9].name = "dcnv2_low_rank";
  cases[9].config.cross_rank = 2;
  cases[9].config.cross = "stacked";
  return cases;
}

/// Random parameters, biases too.
inline std::shared_ptr<Recommender> model_of(const Case& c) {
  auto model = make_recommender(c.config, c.inputs);
  const torch::NoGradGuard no_grad;
  for (auto& item : model->named_parameters())
    item.value().copy_(testing::normal(item.value().sizes(), name_key(item.key())) * 0.5);
  return model;
}

/// Samples with every number of events from none to all; two events have no negative.
inline RecommenderBatch batch_of(const Case& c) {
  RecommenderBatch batch;
  batch.dense = testing::normal({kSamples, c.inputs.dense}, 1);
  batch.embedded = testing::normal({kSamples, EmbeddedColumns(c.config, c.inputs).all()}, 2);
  batch.mask = at::arange(kLength).unsqueeze(0).lt(at::arange(kSamples).unsqueeze(1));
  batch.negative_mask = batch.mask.narrow(1, 1, kLength - 1).clone();
  batch.negative_mask[3][1].fill_(false);
  batch.negative_mask[5][0].fill_(false);
  // Rows of events that are not there are zero, as the tables give them.
  if (c.inputs.sequences.empty()) return batch;
  const int64_t first = c.inputs.sparse * c.config.dim, sequences = std::ssize(c.inputs.sequences);
  const at::Tensor events = batch.embedded.narrow(1, first, sequences * kLength * c.config.dim);
  const at::Tensor mask =
      batch.mask.unsqueeze(1).unsqueeze(3).expand({kSamples, sequences, kLength, c.config.dim});
  events.mul_(mask.reshape({kSamples, -1}));
  return batch;
}

inline at::Tensor cotangent_of(const Case& c) {
  return testing::normal({kSamples, c.inputs.tasks}, 3);
}

class RecommenderOracle : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new test::TemporaryFolder;
    for (const Case& c : cases()) write(c);
    status_ = testing::run_oracle("recommender_oracle.py", folder_->path().string());
  }
  static void TearDownTestSuite() { delete folder_; }

  static void write(const Case& c) {
    RecommenderConfig config = c.config;
    nlohmann::json targets = nlohmann::json::array(), pairs = nlohmann::json::array();
    for (const auto& sequence : c.inputs.sequences) targets.push_back(sequence.target);
    for (const auto& pair : c.inputs.co_actions) pairs.push_back({pair.item, pair.sequence});
    const nlohmann::json inputs = {{"dense", c.inputs.dense}, {"sparse", c.inputs.sparse},
                                   {"tasks", c.inputs.tasks}, {"length", c.inputs.length},
                                   {"targets", targets},      {"co_actions", pairs}};
    write_file_atomically(
        path(c, ".json"),
        nlohmann::json({{"config", config_to_json([&](Section& s) { config.describe(s); })},
                        {"inputs", inputs}})
            .dump());
    const RecommenderBatch batch = batch_of(c);
    std::map<std::string, at::Tensor> tensors = {
        {"dense", batch.dense},
        {"embedded", batch.embedded},
        {"mask", batch.mask.to(at::kFloat)},
        {"negative_mask", batch.negative_mask.to(at::kFloat)},
        {"cotangent", cotangent_of(c)}};
    const auto model = model_of(c);
    for (const auto& item : model->named_parameters())
      tensors["model." + item.key()] = item.value().detach();
    io::write_safetensors(path(c, ".safetensors"), tensors);
  }

  void SetUp() override {
    if (status_ == -1) GTEST_SKIP() << "DOVETAIL_PYTHON is not set";
    ASSERT_EQ(status_, 0) << "recommender_oracle.py failed";
  }

  static std::filesystem::path path(const Case& c, const std::string& suffix) {
    return folder_->path() / (c.name + suffix);
  }

  inline static test::TemporaryFolder* folder_ = nullptr;
  inline static int status_ = 0;
};

/// Results of a model: "logits", "auxiliary" (0 without one), "grad.embedded" and "grad.PARAMETER".
using Found = std::map<std::string, at::Tensor>;

inline Found results_of(const Case& c, at::ScalarType compute) {
  const auto model = model_of(c);
  model->set_compute_dtype(compute);
  RecommenderBatch batch = batch_of(c);
  batch.embedded.requires_grad_();
  const RecommenderOutput output = model->forward(batch);
  at::Tensor loss = (output.logits * cotangent_of(c)).sum();
  EXPECT_EQ(output.auxiliary.defined(), c.name == "dien");
  if (output.auxiliary.defined()) loss = loss + output.auxiliary;
  loss.backward();
  Found found = {
      {"logits", output.logits.detach()},
      {"auxiliary", output.auxiliary.defined() ? output.auxiliary.detach() : at::zeros({})},
      {"grad.embedded", batch.embedded.grad()}};
  for (const auto& item : model->named_parameters())
    found["grad." + item.key()] = item.value().grad();
  return found;
}

}  // namespace dovetail::models::oracle
