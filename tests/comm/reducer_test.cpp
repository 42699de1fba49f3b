#include "dovetail/comm/gradient_reducer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/types.h>

#include <atomic>
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "dovetail/base/error.h"
#include "ranks.h"

namespace dovetail::comm::reducer_test {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kSamples = 16;

/// Odd sizes, a parameter used twice, one used by a branch that some samples take, one never used.
struct Model : torch::nn::Module {
  explicit Model(at::ScalarType dtype) {
    auto generator = at::make_generator<at::CPUGeneratorImpl>(
        uint64_t{3});  // the ranks are threads: not the global one
    const auto add = [&](const char* name, std::vector<int64_t> shape) {
      return register_parameter(name, torch::randn(shape, generator, at::kDouble).div(4).to(dtype));
    };
    embedding = add("embedding", {13, 7});
    hidden = add("hidden", {7, 31});
    bias = add("bias", {31});
    unused = add("unused", {5});
    sometimes = add("sometimes", {31});
    back = add("back", {31, 7});
  }

  /// A sum over samples [begin, end).
  at::Tensor loss(int64_t begin, int64_t end) {
    const auto dtype = hidden.scalar_type();
    auto total = torch::zeros({}, dtype);
    for (int64_t i = begin; i < end; ++i) {
      auto h = torch::tanh(torch::matmul(embedding[i % 13], hidden) + bias);
      if (i % 4 == 1) h = h * sometimes;
      const auto logits =
          torch::matmul(torch::matmul(h, back), embedding.t());  // tied to the input
      total = total + torch::logsumexp(logits, 0) - logits[(i * 5) % 13];
    }
    return total;
  }

  at::Tensor embedding, hidden, bias, unused, sometimes, back;
};

using Gradients = std::vector<at::Tensor>;

/// The gradient of one step over `ranks`, every rank with `micro_batches`; rank 0's, after
/// comparing all ranks' bits.
Gradients step_gradient(int ranks, int micro_batches, at::ScalarType dtype, int64_t bucket_bytes,
                        int steps = 1) {
  std::vector<Gradients> results(static_cast<size_t>(ranks));
  const auto body = [&](std::shared_ptr<Group> group) {
    Model model(dtype);
    GradientReducer reducer(group, model.parameters(), {.bucket_bytes = bucket_bytes});
    const int64_t share = kSamples / group->size(), micro = share / micro_batches;
    for (int step = 0; step < steps; ++step) {
      reducer.begin();
      for (int k = 0; k < micro_batches; ++k) {
        if (k + 1 == micro_batches) reducer.arm();
        const int64_t begin = group->rank() * share + k * micro;
        model.loss(begin, begin + micro).backward();
      }
      reducer.finish();
    }
    auto& result = results[static_cast<size_t>(group->rank())];
    for (size_t i = 0; i < reducer.size(); ++i) {
      result.push_back(reducer.gradient(i).clone());
      EXPECT_EQ(result.back().sizes(), model.parameters()[i].sizes());
      EXPECT_TRUE(reducer.gradient(i).is_contiguous());
    }
  };
  expect_all_succeed(ranks, body);
  for (const auto& result : results)
    for (size_t i = 0; i < result.size(); ++i)
      EXPECT_TRUE(torch::equal(result[i], results[0][i])) << "ranks differ in " << i;
  return results[0];
}

Gradients reference(at::ScalarType dtype) {
  Model model(dtype);
  model.loss(0, kSamples).backward();
  Gradients gradients;
  for (const auto& p : model.parameters())
    gradients.push_back(p.grad().defined() ? p.grad() : torch::zeros_like(p));
  return gradients;
}

double largest_relative_difference(const Gradients& a, const Gradients& b) {
  EXPECT_EQ(a.size(), b.size());
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const auto x = a[i].to(at::kDouble), y = b[i].to(at::kDouble);
    const double scale = std::max(y.abs().max().item<double>(), 1e-30);
    largest = std::max(largest, (x - y).abs().max().item<double>() / scale);
  }
  return largest;
}

TEST(GradientReducer, AnyRanksMicroBatchesAndBucketsGiveTheGradientOfTheWholeBatch) {
  const auto expected = reference(at::kDouble);
  for (const int ranks : {1, 2, 4})
    for (const int micro_batches : {1, 2, 4})
      for (const int64_t bucket_bytes : {1, 600, 1 << 20})
        EXPECT_LT(largest_relative_difference(
                      step_gradient(ranks, micro_batches, at::kDouble, bucket_bytes), expected),
                  1e-10)
            << ranks << " ranks, " << micro_batches << " micro-batches, buckets of "
            << bucket_bytes;
}

/// A recorded step writes into the tensors of its recording, whatever a step in between has left.
TEST(GradientReducer, ReplacedSumsStandInForTheLastStep) {
  for (const int micro_batches : {1, 2}) {  // two are summed beside `.grad()` in bfloat16
    Model model(at::kBFloat16);
    GradientReducer reducer(local_groups(1)[0], model.parameters(), {});
    const auto step = [&](int64_t begin, int64_t size) {
      reducer.begin();
      for (int k = 0; k < micro_batches; ++k) {
        if (k + 1 == micro_batches) reducer.arm();
        model.loss(begin + k * size / micro_batches, begin + (k + 1) * size / micro_batches)
            .backward();
      }
      reducer.finish();
      Gradients sums;
      for (size_t i = 0; i < reducer.size(); ++i) sums.push_back(reducer.gradient(i));
      return sums;
    };
    const Gradients recorded = step(0, 8);
    EXPECT_FALSE(torch::equal(step(8, 8)[0], recorded[0]));
    reducer.replace(recorded);
    for (size_t i = 0; i < recorded.size(); ++i)
      EXPECT_TRUE(reducer.gradient(i).is_same(recorded[i])) << i;
    EXPECT_FALSE(torch::equal(step(8, 8)[0], recorded[0])) << "begin forgets them";
  }
}

/// The gradient of the second of two steps with `scatter`, put together from the shares of all
/// ranks.
Gradients scattered_gradient(int ranks, int micro_batches, at::ScalarType dtype,
                             int64_t bucket_bytes) {
  Gradients result(Model(dtype).parameters().size());
  expect_all_succeed(ranks, [&](std::shared_ptr<Group> group) {
    Model model(dtype);
    GradientReducer reducer(group, model.parameters(),
                            {.bucket_bytes = bucket_bytes, .scatter = true});
    const int64_t share = kSamples / ranks, micro = share / micro_batches;
    for (int step = 0; step < 2; ++step) {
      reducer.begin();
      for (int k = 0; k < micro_batches; ++k) {
        reducer.arm();
        const int64_t begin = group->rank() * share + k * micro;
        model.loss(begin, begin + micro).backward();
        reducer.finish();
      }
    }
    for (size_t b = 0; b < reducer.buckets().size(); ++b) {
      const Bucket& bucket = reducer.buckets()[b];
      EXPECT_EQ(reducer.share(b).numel(), bucket.share());
      EXPECT_EQ(reducer.share(b).storage().nbytes(), reducer.share(b).nbytes())
          << "the bucket is still there";
      const auto all = torch::cat(group->all_gather(reducer.share(b)));
      EXPECT_TRUE(all.slice(0, bucket.elements()).eq(0).all().item<bool>()) << "padding";
      int64_t offset = 0;
      for (size_t k = 0; k < bucket.parameters.size(); offset += bucket.sizes[k++]) {
        const size_t i = bucket.parameters[k];
        if (group->rank() == 0)
          result[i] =
              all.narrow(0, offset, bucket.sizes[k]).view(model.parameters()[i].sizes()).clone();
      }
    }
    EXPECT_THROW(reducer.gradient(0), InternalError);
    EXPECT_THROW(model.loss(0, 1).backward(), InternalError);  // not armed
  });
  return result;
}

TEST(GradientReducer, SharesAreThoseOfTheGradientOfTheWholeBatch) {
  const auto expected = reference(at::kDouble);
  for (const int ranks : {2, 4})
    for (const int micro_batches : {1, 2, 4})
      for (const int64_t bucket_bytes : {1, 600, 1 << 20})
        EXPECT_LT(
            largest_relative_difference(
                scattered_gradient(ranks, micro_batches, at::kDouble, bucket_bytes), expected),
            1e-10)
            << ranks << " ranks, " << micro_batches << " micro-batches, buckets of "
            << bucket_bytes;
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const auto gradient = scattered_gradient(2, 2, dtype, 600);
    for (const auto& g : gradient) EXPECT_EQ(g.scalar_type(), at::kFloat);
    EXPECT_LT(largest_relative_difference(gradient, step_gradient(2, 2, dtype, 600)), 1e-6);
  }
}

TEST(GradientReducer, SharesOfAllReducedBucketsAreRangesOfThem) {
  for (const int n : {2, 3, 4})
    expect_all_succeed(n, [&](std::shared_ptr<Group> group) {
      const auto matrix = torch::ones({7, 5}).requires_grad_(),
                 vector = torch::ones({3}).requires_grad_();
      GradientReducer reducer(group, {matrix, vector}, {});
      reducer.begin();
      reducer.arm();
      (matrix * torch::arange(35).view({7, 5})).sum().add((vector * 100).sum()).backward();
      reducer.finish();
      const Bucket& bucket = reducer.buckets().at(0);
      EXPECT_EQ(bucket.share(), (38 + n - 1) / n);
      int64_t offset = 0;
      for (const Bucket::Piece& piece : bucket.pieces(group->rank())) {
        const auto of_share = reducer.share(0).narrow(0, offset, piece.size);
        EXPECT_TRUE(torch::equal(
            of_share,
            reducer.gradient(piece.parameter).flatten().narrow(0, piece.begin, piece.size)));
        offset += piece.size;
      }
      EXPECT_EQ(offset, reducer.share(0).numel());
    });
}

TEST(GradientReducer, Float32AgreesToItsPrecision) {
  const auto expected = reference(at::kDouble);
  for (const int ranks : {1, 2, 4}) {
    const auto gradient = step_gradient(ranks, 2, at::kFloat, 600);
    for (const auto& g : gradient) EXPECT_EQ(g.scalar_type(), at::kFloat);
    EXPECT_LT(largest_relative_difference(gradient, expected), 1e-5);
  }
}

TEST(GradientReducer, TheSameRanksGiveTheSameBits) {
  for (const int ranks : {1, 2, 3, 4}) {
    const auto a = step_gradient(ranks, 2, at::kFloat, 300),
               b = step_gradient(ranks, 2, at::kFloat, 300);
    for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(torch::equal(a[i], b[i]));
  }
}

TEST(GradientReducer, EveryStepStartsAfresh) {
  for (const int ranks : {1, 2})
    for (const auto dtype : {at::kFloat, at::kBFloat16}) {
      const auto once = step_gradient(ranks, 2, dtype, 600),
                 thrice = step_gradient(ranks, 2, dtype, 600, /*steps=*/3);
      for (size_t i = 0; i < once.size(); ++i) EXPECT_TRUE(torch::equal(once[i], thrice[i]));
    }
}

/// A parameter whose gradient in micro-batch k of rank r is `value(r, k)`: the sum is known
/// exactly.
at::Tensor sum_of_bf16(int ranks, int micro_batches, const std::function<float(int, int)>& value) {
  at::Tensor result;
  expect_all_succeed(ranks, [&](std::shared_ptr<Group> group) {
    auto parameter = torch::zeros({3}, at::kBFloat16).requires_grad_();
    GradientReducer reducer(group, {parameter}, {});
    reducer.begin();
    for (int k = 0; k < micro_batches; ++k) {
      if (k + 1 == micro_batches) reducer.arm();
      (parameter * value(group->rank(), k)).sum().backward();
    }
    reducer.finish();
    if (group->rank() == 0) result = reducer.gradient(0).clone();
  });
  return result;
}

TEST(GradientReducer, Bfloat16GradientsAreAddedInFloat32) {
  // 256 + 1 is 256 in bfloat16.
  const auto value = [](int rank, int k) { return rank + k == 0 ? 256.0f : 1.0f; };
  for (const auto& [ranks, micro_batches] : {std::pair{1, 8}, {2, 4}, {4, 2}, {4, 1}}) {
    const auto sum = sum_of_bf16(ranks, micro_batches, value);
    EXPECT_EQ(sum.scalar_type(), at::kFloat);
    EXPECT_TRUE(sum.eq(256 + ranks * micro_batches - 1).all().item<bool>()) << sum;
  }
}

TEST(GradientReducer, AGroupOfOneCopiesNothing) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    auto parameter = torch::zeros({3}, dtype).requires_grad_();
    GradientReducer reducer(local_groups(1)[0], {parameter}, {});
    reducer.begin();
    reducer.arm();
    (parameter * 2).sum().backward();
    reducer.finish();
    EXPECT_TRUE(reducer.gradient(0).is_same(parameter.grad()));
    EXPECT_EQ(reducer.gradient(0).scalar_type(), dtype);
  }
}

TEST(GradientReducer, SumsAreReducedWhileBackwardRuns) {
  // The last parameter's bucket is sent before backward reaches the first parameter. A hook there
  // waits until each rank's bucket has arrived.
  std::atomic<int> started = 0;
  expect_all_succeed(2, [&](std::shared_ptr<Group> group) {
    struct Counting final : Group {
      std::shared_ptr<Group> inner;
      std::atomic<int>* started;
      int rank() const override { return inner->rank(); }
      int size() const override { return inner->size(); }
      void all_reduce(at::Tensor& t) override { inner->all_reduce(t); }
      std::unique_ptr<Work> all_reduce_async(at::Tensor t) override {
        ++*started;
        return inner->all_reduce_async(t);
      }
      std::unique_ptr<Work> reduce_scatter_async(at::Tensor t) override {
        return inner->reduce_scatter_async(t);
      }
      void broadcast(at::Tensor& t, int root) override { inner->broadcast(t, root); }
      std::vector<at::Tensor> all_gather(const at::Tensor& t) override {
        return inner->all_gather(t);
      }
      void barrier() override { inner->barrier(); }
      std::unique_ptr<Work> all_to_all_async(at::Tensor output, const at::Tensor& input,
                                             const std::vector<int64_t>& receive,
                                             const std::vector<int64_t>& send) override {
        return inner->all_to_all_async(output, input, receive, send);
      }
      Traffic all_to_all_traffic() const override { return inner->all_to_all_traffic(); }
      std::shared_ptr<Group> split(const std::vector<std::vector<int>>& parts) override {
        return inner->split(parts);
      }
      std::string gpu_library() const override { return inner->gpu_library(); }
      Connections connections() const override { return inner->connections(); }
    };
    auto counting = std::make_shared<Counting>();
    counting->inner = group;
    counting->started = &started;
    auto first = torch::ones({4}).requires_grad_(), last = torch::ones({4}).requires_grad_();
    GradientReducer reducer(counting, {first, last}, {.bucket_bytes = 1});
    int seen = -1;
    first.register_hook([&](at::Tensor gradient) {
      seen = started;
      return gradient;
    });
    reducer.begin();
    reducer.arm();
    ((first * 2).exp() * last).sum().backward();
    EXPECT_GE(seen, 1);
    reducer.finish();
    EXPECT_TRUE(reducer.gradient(1).allclose(torch::full({4}, 2 * std::exp(2.0f))));
  });
}

TEST(GradientReducer, RanksThatUseOtherParametersStillMatch) {
  // Rank r uses parameter r only, so gradients arrive in another order, or not at all, on every
  // rank.
  expect_all_succeed(4, [&](std::shared_ptr<Group> group) {
    std::vector<at::Tensor> parameters;
    for (int i = 0; i < 5; ++i) parameters.push_back(torch::ones({1000 + i}).requires_grad_());
    GradientReducer reducer(group, parameters, {.bucket_bytes = 1});
    reducer.begin();
    reducer.arm();
    (parameters[static_cast<size_t>(group->rank())] * (group->rank() + 1)).sum().backward();
    reducer.finish();
    for (int i = 0; i < 5; ++i)
      EXPECT_TRUE(
          reducer.gradient(static_cast<size_t>(i)).eq(i < 4 ? i + 1 : 0).all().item<bool>());
  });
}

TEST(GradientReducer, MixedDtypesGetBucketsOfTheirOwn) {
  expect_all_succeed(2, [&](std::shared_ptr<Group> group) {
    std::vector<at::Tensor> parameters;
    for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kFloat})
      parameters.push_back(torch::ones({3}, dtype).requires_grad_());
    GradientReducer reducer(group, parameters, {});
    reducer.begin();
    reducer.arm();
    auto loss = torch::zeros({}, at::kDouble);
    for (auto& p : parameters) loss = loss + p.sum().to(at::kDouble);
    loss.backward();
    reducer.finish();
    for (size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(reducer.gradient(i).scalar_type(), i == 1 ? at::kDouble : at::kFloat);
      EXPECT_TRUE(reducer.gradient(i).eq(2).all().item<bool>());
    }
  });
}

TEST(GradientReducer, AStepThatFailedHalfWayIsForgotten) {
  expect_all_succeed(2, [&](std::shared_ptr<Group> group) {
    auto a = torch::ones({3}).requires_grad_(), b = torch::ones({3}).requires_grad_();
    GradientReducer reducer(group, {a, b}, {.bucket_bytes = 1 << 20});
    reducer.begin();
    (a * 100 + b).sum().backward();
    reducer.arm();
    b.sum().backward();  // and then something throws; no collective has begun
    reducer.begin();
    reducer.arm();
    (a + b).sum().backward();
    reducer.finish();
    EXPECT_TRUE(reducer.gradient(0).eq(2).all().item<bool>());
    EXPECT_TRUE(reducer.gradient(1).eq(2).all().item<bool>());
  });
}

TEST(GradientReducer, ItsHooksGoWithIt) {
  expect_all_succeed(2, [&](std::shared_ptr<Group> group) {
    auto parameter = torch::ones({3}).requires_grad_();
    auto reducer = std::make_unique<GradientReducer>(group, std::vector<at::Tensor>{parameter},
                                                     GradientReducer::Options{});
    const auto loss = parameter.sum();  // its graph keeps the accumulator that has the hook
    reducer.reset();
    loss.backward();
    ASSERT_TRUE(parameter.grad().defined());
    EXPECT_TRUE(parameter.grad().eq(1).all().item<bool>());
  });
}

TEST(GradientReducer, ADeadRankComesOutOfBackwardOrFinishAsCommError) {
  const auto errors = run_ranks(3, [&](std::shared_ptr<Group> group) {
    auto parameter = torch::ones({1000}).requires_grad_();
    GradientReducer reducer(group, {parameter}, {});
    for (int step = 0; step < 1000; ++step) {
      if (group->rank() == 1 && step == 2) return;
      reducer.begin();
      reducer.arm();
      try {
        parameter.sum().backward();
        reducer.finish();
      } catch (const CommError&) {
        throw;
      } catch (const std::exception& other) {
        ADD_FAILURE() << "not a CommError: " << other.what();
        throw;
      }
    }
  });
  EXPECT_EQ(errors[1], "");
  for (const size_t r : {0, 2}) EXPECT_THAT(errors[r], HasSubstr("rank 1 stopped answering"));
}

TEST(GradientReducer, MisuseIsAnInternalError) {
  expect_all_succeed(2, [&](std::shared_ptr<Group> group) {
    auto parameter = torch::ones({3}).requires_grad_();
    GradientReducer reducer(group, {parameter}, {});
    EXPECT_THROW(reducer.finish(), InternalError);
    EXPECT_THROW(reducer.gradient(1), InternalError);
    reducer.begin();
    reducer.arm();
    EXPECT_THROW(reducer.arm(), InternalError);
    parameter.sum().backward();
    EXPECT_THROW(parameter.sum().backward(),
                 InternalError);  // a second gradient after the bucket was sent
    reducer.finish();
    EXPECT_THROW(GradientReducer(group, {torch::ones({3})}, {}), InternalError);
    EXPECT_THROW(GradientReducer(group, {parameter * 2}, {}), InternalError);
  });
}

}  // namespace
}  // namespace dovetail::comm::reducer_test
