// The model against the same transformer written out in PyTorch (gpt_oracle.py), which shares no
// code with ours.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "dovetail/base/file.h"
#include "dovetail/io/safetensors.h"
#include "small_models.h"

namespace dovetail::models::oracle_test {
namespace {

class Oracle : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new test::TemporaryFolder;
    for (const auto& variant : testing::variants()) {
      const auto model = testing::make_model(variant.config, 1, at::kDouble);
      auto config = model->config();
      write_file_atomically(path(variant, ".json"),
                            config_to_json([&](Section& s) { config.describe(s); }).dump());
      std::map<std::string, at::Tensor> tensors = {{"tokens", tokens(config)}};
      for (const auto& item : model->named_parameters())
        tensors[item.key()] = item.value().detach();
      io::write_safetensors(path(variant, ".safetensors"), tensors);
    }
    status_ = testing::run_oracle("gpt_oracle.py", folder_->path().string());
  }
  static void TearDownTestSuite() { delete folder_; }

  void SetUp() override {
    if (status_ == -1) GTEST_SKIP() << "DOVETAIL_PYTHON is not set";
    ASSERT_EQ(status_, 0) << "gpt_oracle.py failed";
  }

  static std::filesystem::path path(const testing::Variant& variant, const std::string& suffix) {
    return folder_->path() / (variant.name + suffix);
  }

  /// A full context, with padding at the end of the last sequence.
  static at::Tensor tokens(const ModelConfig& config) {
    auto ids = testing::random_tokens(3, config.context + 1, config.vocab_size);
    ids[2].slice(0, config.context - 4).fill_(-100);
    return ids;
  }

  /// Largest error of logits, loss and every gradient, each relative to the largest value expected
  /// there.
  static void expect_close(at::ScalarType dtype, double tolerance) {
    for (const auto& variant : testing::variants()) {
      const io::SafetensorsFile expected(path(variant, ".expected.safetensors"));
      const auto model = testing::make_model(variant.config, 1, dtype);
      const auto ids = tokens(model->config());
      const auto compare = [&](const std::string& name, const at::Tensor& ours) {
        const auto theirs = expected.read(name);
        ASSERT_EQ(ours.sizes(), theirs.sizes()) << variant.name << " " << name;
        EXPECT_LT(testing::largest_difference(ours, theirs),
                  tolerance * theirs.abs().max().item<double>())
            << variant.name << " " << name;
      };
      compare("logits", model->logits(ids.slice(1, 0, -1).clamp_min(0)));
      const auto loss = model->loss(ids);
      compare("loss", loss.sum.detach());
      EXPECT_EQ(loss.weight, 3 * model->config().context - 5);
      loss.sum.backward();
      for (const auto& item : model->named_parameters())
        compare("grad." + item.key(), item.value().grad());
    }
  }

  static test::TemporaryFolder* folder_;
  static int status_;
};
test::TemporaryFolder* Oracle::folder_ = nullptr;
int Oracle::status_ = 0;

TEST_F(Oracle, AgreesInFloat64) { expect_close(at::kDouble, 1e-11); }
TEST_F(Oracle, AgreesInFloat32) { expect_close(at::kFloat, 2e-5); }
TEST_F(Oracle, AgreesRoughlyInBFloat16) { expect_close(at::kBFloat16, 0.1); }

}  // namespace
}  // namespace dovetail::models::oracle_test
