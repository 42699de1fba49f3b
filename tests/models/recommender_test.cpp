#include "dovetail/models/recommender.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <cmath>

#include "dovetail/base/rng.h"
#include "tests/ops/testing.h"

namespace dovetail::models::recommender_test {
namespace {

using ::testing::HasSubstr;
using Matrix = std::vector<std::vector<double>>;
using Vector = std::vector<double>;

Vector to_vector(const at::Tensor& x) {
  const at::Tensor d = x.to(at::kDouble).contiguous();
  return {d.const_data_ptr<double>(), d.const_data_ptr<double>() + d.numel()};
}

/// A model's parameters by name, for definitions in plain loops.
struct Parameters {
  std::map<std::string, at::Tensor> named;

  explicit Parameters(const Recommender& model) {
    for (const auto& item : model.named_parameters()) named[item.key()] = item.value().detach();
  }
  /// W x + b of the Linear `name`.
  Vector linear(const std::string& name, const Vector& x) const {
    const Vector w = to_vector(named.at(name + ".weight"));
    Vector y = named.contains(name + ".bias") ? to_vector(named.at(name + ".bias"))
                                              : Vector(w.size() / x.size());
    for (size_t o = 0; o < y.size(); ++o)
      for (size_t i = 0; i < x.size(); ++i) y[o] += w[o * x.size() + i] * x[i];
    return y;
  }
  Vector tower(const std::string& name, Vector x, size_t layers) const {
    for (size_t i = 0; i < layers; ++i) {
      x = linear(name + "." + std::to_string(i), x);
      for (double& value : x) value = std::max(value, 0.0);
    }
    return x;
  }
};

double dot(const Vector& a, const Vector& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

Vector join(const Vector& a, const Vector& b) {
  Vector out = a;
  out.insert(out.end(), b.begin(), b.end());
  return out;
}

/// The logit of one sample, from the papers' formulas.
double by_definition(const RecommenderConfig& config, const Parameters& p, const Vector& dense,
                     const Matrix& embeddings, const Vector& wide) {
  Vector all = dense;
  for (const Vector& e : embeddings) all = join(all, e);
  if (config.model == "dlrm") {
    const Vector bottom = p.tower("bottom", dense, config.bottom.size() + 1);
    Matrix vectors = {bottom};
    vectors.insert(vectors.end(), embeddings.begin(), embeddings.end());
    Vector found = bottom;
    for (size_t i = 0; i < vectors.size(); ++i)
      for (size_t j = 0; j < i; ++j) found.push_back(dot(vectors[i], vectors[j]));
    return p.linear("head", p.tower("deep", found, config.deep.size()))[0];
  }
  if (config.model == "dcnv2") {
    Vector x = all;
    for (int64_t l = 0; l < config.cross_layers; ++l) {
      const Vector in = config.cross_rank > 0 ? p.linear("cross_down" + std::to_string(l), x) : x;
      const Vector product = p.linear("cross" + std::to_string(l), in);
      for (size_t i = 0; i < x.size(); ++i) x[i] += all[i] * product[i];
    }
    if (config.cross == "stacked")
      return p.linear("head", p.tower("deep", x, config.deep.size()))[0];
    return p.linear("head", join(x, p.tower("deep", all, config.deep.size())))[0];
  }
  double logit = p.linear("head", p.tower("deep", all, config.deep.size()))[0];
  for (const double weight : wide) logit += weight;
  if (config.model == "wide_deep" && !dense.empty()) logit += p.linear("wide", dense)[0];
  if (config.model == "deepfm") {
    for (size_t i = 0; i < embeddings.size(); ++i)
      for (size_t j = 0; j < i; ++j) logit += dot(embeddings[i], embeddings[j]);
  }
  return logit;
}

RecommenderConfig config_of(const std::string& model) {
  RecommenderConfig config;
  config.model = model;
  config.dim = 5;
  config.deep = {7, 3};
  if (model == "dlrm") config.bottom = {6};
  return config;
}

void expect_definition(const RecommenderConfig& config, const RecommenderInputs& inputs) {
  const auto model = make_recommender(config, inputs);
  initialize(*model, 3);
  const torch::NoGradGuard no_grad;
  for (auto& item : model->named_parameters())  // biases too
    item.value().copy_(testing::normal(item.value().sizes(), name_key(item.key())) * 0.5);
  const int64_t samples = 4,
                columns = inputs.sparse * (config.dim + (has_wide_part(config) ? 1 : 0));
  const at::Tensor dense = testing::normal({samples, inputs.dense}, 1),
                   embedded = testing::normal({samples, columns}, 2);
  const at::Tensor logits = model->forward({.dense = dense, .embedded = embedded}).logits;
  ASSERT_EQ(logits.sizes(), at::IntArrayRef({samples, 1}));
  const Parameters parameters(*model);
  for (int64_t b = 0; b < samples; ++b) {
    Matrix embeddings;
    for (int64_t f = 0; f < inputs.sparse; ++f)
      embeddings.push_back(to_vector(embedded[b].narrow(0, f * config.dim, config.dim)));
    const Vector wide = to_vector(
        embedded[b].narrow(0, inputs.sparse * config.dim, columns - inputs.sparse * config.dim));
    const double expected =
        by_definition(config, parameters, to_vector(dense[b]), embeddings, wide);
    EXPECT_NEAR(logits[b].item<double>(), expected, 1e-4 * (1 + std::abs(expected)));
  }
}

TEST(Recommender, IsItsDefinition) {
  for (const char* model : {"wide_deep", "deepfm", "dlrm", "dcnv2"}) {
    SCOPED_TRACE(model);
    expect_definition(config_of(model), {.dense = 4, .sparse = 6});
    expect_definition(config_of(model), {.dense = 1, .sparse = 1});
    if (std::string(model) != "dlrm")
      expect_definition(config_of(model), {.dense = 0, .sparse = 3});
  }
  RecommenderConfig config = config_of("dcnv2");
  config.cross_rank = 2;
  expect_definition(config, {.dense = 4, .sparse = 6});
  config.cross = "stacked";
  config.cross_layers = 1;
  expect_definition(config, {.dense = 4, .sparse = 6});
}

TEST(Recommender, BeginsByGlorotAndByName) {
  RecommenderConfig config = config_of("deepfm");
  config.deep = {300, 200};
  const auto made = [&](uint64_t seed) {
    auto model = make_recommender(config, {.dense = 20, .sparse = 30});
    initialize(*model, seed);
    return model;
  };
  const auto model = made(7), again = made(7), other = made(8);
  const auto weight = [](const auto& m) { return m->named_parameters()["deep.1.weight"]; };
  EXPECT_TRUE(at::equal(weight(model), weight(again)));
  EXPECT_FALSE(at::equal(weight(model), weight(other)));
  EXPECT_NEAR(weight(model).std().item<double>(), std::sqrt(2.0 / 500), 0.002);
  EXPECT_EQ(model->named_parameters()["deep.1.bias"].abs().sum().item<double>(), 0);
}

TEST(Recommender, SlopesOfPReluBeginAtAQuarter) {
  const auto model = make_recommender(config_of("din"),
                                      {.dense = 1, .sparse = 2, .sequences = {{0}}, .length = 3});
  initialize(*model, 1);
  EXPECT_TRUE(at::equal(model->named_parameters()["attention.0_slope"], at::full({36}, 0.25)));
}

TEST(Recommender, CountsWhatItMultiplies) {
  const auto flops = [](const RecommenderConfig& config, const RecommenderInputs& inputs) {
    return flops_per_sample(*make_recommender(config, inputs));
  };
  EXPECT_EQ(flops(config_of("wide_deep"), {.dense = 4, .sparse = 6}),
            6 * (34 * 7 + 7 * 3 + 3 * 1 + 4 * 1));
  const RecommenderInputs history = {
      .dense = 4, .sparse = 6, .sequences = {{2}, {-1}}, .length = 9};
  const int deep = 7 * 3 + 3 * 1;
  RecommenderConfig config = config_of("din");
  config.attention = {8};
  EXPECT_EQ(flops(config, history), 6 * (44 * 7 + deep + 9 * (25 * 8 + 8 * 1) + 9 * 10));
  config = config_of("dien");
  config.interest = 8;
  config.auxiliary = {6};
  const int gru = 3 * 8 * (10 + 8), augru = 3 * 8 * (8 + 8), auxiliary = 18 * 6 + 6 * 1;
  EXPECT_EQ(flops(config, history),
            6 * (52 * 7 + deep + 9 * (gru + augru) + 5 * 8 + 9 * 8 + 2 * 8 * auxiliary));
  config = config_of("can");
  config.micro = {4, 3, 2};
  RecommenderInputs pairs = history;
  pairs.co_actions = {{2, 0}};
  EXPECT_EQ(flops(config, pairs), 6 * ((44 + 2 * 5) * 7 + deep + 2 * 9 * (4 * 3 + 3 * 2)));
  config = config_of("mmoe");
  config.experts = 2;
  config.expert = {11};
  EXPECT_EQ(flops(config, {.dense = 4, .sparse = 6, .tasks = 3}),
            6 * (2 * 34 * 11 + 3 * (34 * 2 + 11 * 7 + deep + 2 * 11)));
}

TEST(Recommender, RefusesWhatItsModelDoesNotRead) {
  const auto message = [](auto change, const char* model = "deepfm",
                          RecommenderInputs inputs = {4, 6}) {
    RecommenderConfig config = config_of(model);
    change(config);
    return testing::user_error([&] { check(config, inputs); });
  };
  EXPECT_THAT(message([](auto& c) { c.bottom = {3}; }), HasSubstr("recommender.bottom is dlrm's"));
  EXPECT_THAT(message([](auto& c) { c.cross_rank = 3; }, "dlrm"),
              HasSubstr("recommender.cross_rank is dcnv2's"));
  EXPECT_THAT(message([](auto& c) { c.attention = {3}; }),
              HasSubstr("recommender.attention is din's"));
  EXPECT_THAT(message([](auto& c) { c.interest = 3; }),
              HasSubstr("recommender.interest is dien's"));
  EXPECT_THAT(message([](auto& c) { c.auxiliary = {3}; }),
              HasSubstr("recommender.auxiliary is dien's"));
  EXPECT_THAT(message([](auto& c) { c.auxiliary_weight = 3; }),
              HasSubstr("recommender.auxiliary_weight is dien's"));
  EXPECT_THAT(message([](auto& c) { c.micro = {3, 1}; }), HasSubstr("recommender.micro is can's"));
  EXPECT_THAT(message([](auto& c) { c.orders = 3; }), HasSubstr("recommender.orders is can's"));
  EXPECT_THAT(message([](auto& c) { c.co_action = {"a * b"}; }),
              HasSubstr("recommender.co_action is can's"));
  EXPECT_THAT(message([](auto& c) { c.experts = 3; }), HasSubstr("recommender.experts is mmoe's"));
  EXPECT_THAT(message([](auto& c) { c.expert = {3}; }), HasSubstr("recommender.expert is mmoe's"));
  EXPECT_THAT(message([](auto& c) { c.task_weights = {3}; }),
              HasSubstr("recommender.task_weights is mmoe's"));
  EXPECT_THAT(message([](auto& c) { c.task_weights = {3}; }, "mmoe", {.sparse = 6, .tasks = 2}),
              HasSubstr("task_weights has 1 entries, but rows.label names 2"));
  EXPECT_THAT(message([](auto&) {}, "deepfm", {.sparse = 6, .tasks = 2}),
              HasSubstr("rows.label names 2 tasks"));
  EXPECT_THAT(message([](auto&) {}, "din"), HasSubstr("[rows] names no sequence"));
  EXPECT_THAT(message([](auto&) {}, "dien", {.sparse = 6, .sequences = {{-1}}, .length = 4}),
              HasSubstr("no sequence shares a feature's table"));
  EXPECT_THAT(message([](auto&) {}, "dien", {.sparse = 6, .sequences = {{0}}, .length = 1}),
              HasSubstr("sequences keep one"));
  EXPECT_THAT(message([](auto&) {}, "can", {.sparse = 6, .sequences = {{-1}}, .length = 4}),
              HasSubstr("has no co-action"));
  EXPECT_THAT(message([](auto& c) { c.micro = {3}; }, "can",
                      {.sparse = 6, .sequences = {{0}}, .length = 4}),
              HasSubstr("recommender.micro = [3] is no MLP"));
  EXPECT_THAT(message([](auto&) {}, "dlrm", {0, 6}), HasSubstr("needs a dense feature"));
  EXPECT_THAT(message([](auto&) {}, "deepfm", {4, 0}), HasSubstr("needs a sparse feature"));
}

}  // namespace
}  // namespace dovetail::models::recommender_test
