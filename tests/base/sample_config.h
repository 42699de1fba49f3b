#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "dovetail/base/schema/schema.h"

namespace dovetail::test {

/// Config with every kind of key, for the tests of the schema.
struct SampleConfig {
  struct Source {
    std::string path;
    double weight = 1.0;
    void describe(Section& s) {
      s.value("path", path, "Folder of token shards").required();
      s.value("weight", weight, "Share of the mixture").above(0);
    }
    bool operator==(const Source&) const = default;
  };
  struct Phase {
    double from = 0.0;
    std::vector<Source> mixture;
    void describe(Section& s) {
      s.value("from", from, "Share of training after which the phase begins").range(0, 1);
      s.list("mixture", mixture, "Sources of the phase");
    }
    bool operator==(const Phase&) const = default;
  };
  struct Moe {
    int64_t experts = 0;
    void describe(Section& s) {
      s.value("experts", experts, "Experts, 0 for a dense model").range(0, 65536);
    }
    bool operator==(const Moe&) const = default;
  };
  struct Model {
    int64_t layers = 4;
    std::string norm = "rmsnorm";
    bool tied = true;
    Moe moe;
    void describe(Section& s) {
      s.value("layers", layers, "Transformer blocks").range(1, 10000).unit("blocks");
      s.value("norm", norm, "Normalisation before each sub-block")
          .choices({"rmsnorm", "layernorm"});
      s.value("tied", tied, "Use the embedding as the head");
      s.section("moe", moe, "Mixture of experts");
    }
    bool operator==(const Model&) const = default;
  };
  struct Data {
    std::vector<std::string> text;
    std::vector<Phase> phase;
    void describe(Section& s) {
      s.value("text", text, "Files, folders or globs");
      s.list("phase", phase, "Phases in their order");
    }
    bool operator==(const Data&) const = default;
  };
  struct Optimizer {
    double lr = 6e-4;
    std::vector<double> betas = {0.9, 0.95};
    std::vector<int64_t> milestones;
    int64_t warmup_tokens = 0;
    void describe(Section& s) {
      s.value("lr", lr, "Learning rate")
          .above(0)
          .range(-std::numeric_limits<double>::infinity(), 1);
      s.value("betas", betas, "Decay of the moments | two numbers").range(0, 1);
      s.value("milestones", milestones, "Steps at which to save");
      s.value("warmup_tokens", warmup_tokens, "Linear warm-up")
          .range(0, std::numeric_limits<double>::infinity())
          .unit("tokens");
    }
    bool operator==(const Optimizer&) const = default;
  };

  std::string name = "run";
  int64_t seed = 1;
  double scale = 1.0;
  Model model;
  Data data;
  Optimizer optimizer;

  void describe(Section& s) {
    s.value("name", name, "Name of the run");
    s.value("seed", seed, "Seed of all randomness");
    s.value("scale", scale, "Any number at all");
    s.section("model", model, "The model");
    s.section("data", data, "What is trained on");
    s.section("optimizer", optimizer, "AdamW");
  }
  bool operator==(const SampleConfig&) const = default;

  Describe describer() {
    return [this](Section& s) { describe(s); };
  }
};

}  // namespace dovetail::test
