#pragma once

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <tuple>
#include <vector>

#include "dovetail/base/error.h"
#include "dovetail/plan/run/device_model.h"

namespace dovetail::plan {

/// Measured time and workspace of each algorithm of cuDNN for the convolutions of a model. The file
/// is bench/results/cudnn_MODEL_CARD.json. Its lists are [algorithm, milliseconds, bytes,
/// deterministic, math], by cuDNN's find functions. Only deterministic algorithms are taken: a
/// planned step has the bits of eager under the same algorithms.
class MeasuredConvolutions {
 public:
  /// `math` is fma (FP32) or default (TF32).
  MeasuredConvolutions(const std::filesystem::path& path, const std::string& math) {
    std::ifstream file(path);
    user_check(file.good(), "no measured convolutions at {}; run from the repository's root",
               path.string());
    const auto json = nlohmann::json::parse(file);
    batch_ = json.at("batch");
    const std::map<std::string, ConvolutionPass> passes = {{"forward", ConvolutionPass::kForward},
                                                           {"data", ConvolutionPass::kData},
                                                           {"filter", ConvolutionPass::kFilter}};
    for (const auto& one : json.at("convolutions")) {
      if (one.at("math") != math) continue;
      const auto& x = one.at("x");
      auto& algorithms =
          of_[{x[1], x[2], x[3], one.at("k"), one.at("r"), passes.at(one.at("pass"))}];
      if (!algorithms.empty()) continue;  // another layer of the same shape
      for (const auto& run : one.at("algorithms"))
        if (run[3] == 1)
          algorithms.push_back({"cudnn" + std::to_string(run[0].get<int>()),
                                run[1].get<double>() / 1e3, run[2].get<int64_t>()});
    }
  }

  int64_t batch() const { return batch_; }
  /// Convolutions that the file does not have.
  int modelled() const { return modelled_; }

  /// Returns the measured algorithms of a pass. At another batch, times and workspaces grow as the
  /// batch. A convolution that the file does not have takes the algorithms of `device`.
  std::vector<Algorithm> find(const DeviceModel& device, const ConvolutionShape& shape,
                              ConvolutionPass pass) {
    const auto found = shape.stride == 1 && shape.r == shape.s
                           ? of_.find({shape.c, shape.h, shape.w, shape.k, shape.r, pass})
                           : of_.end();
    if (found == of_.end()) {
      ++modelled_;
      return convolution_algorithms(device, shape, pass);
    }
    std::vector<Algorithm> out = found->second;
    for (Algorithm& algorithm : out) {
      const double scale = static_cast<double>(shape.n) / static_cast<double>(batch_);
      algorithm.time_s *= scale;
      algorithm.workspace_bytes =
          static_cast<int64_t>(static_cast<double>(algorithm.workspace_bytes) * scale);
    }
    return out;
  }

 private:
  std::map<std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t, ConvolutionPass>,
           std::vector<Algorithm>>
      of_;  // by c, h, w, k, r and pass
  int64_t batch_ = 0;
  int modelled_ = 0;
};

}  // namespace dovetail::plan
