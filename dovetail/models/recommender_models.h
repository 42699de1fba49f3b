#pragma once

#include "dovetail/models/recommender.h"

/// Functions that create the models of make_recommender (models/recommender.h), one source file per
/// model. Terms in the comments:
///
/// - embeddings: the embeddings of a sample's sparse features, one vector per feature
/// - deep part: a Tower with the widths RecommenderConfig::deep. The model's last Linear maps its
///   output to a logit.
///
/// The product * of vectors is elementwise.
namespace dovetail::models {

/// Creates a model of feature interactions:
///
/// - wide_deep (Cheng et al. 2016): the logit is the sum of a linear model of all features and of
/// the
///   deep part. The deep part reads dense features and embeddings.
/// - deepfm (Guo et al. 2017): the logit is the sum of three parts. They are a linear model of the
///   sparse features, the inner products of all pairs of embeddings, and the deep part. Only the
///   deep part reads the dense features.
/// - dlrm (Naumov et al. 2019): a tower maps the dense features to one more embedding. The deep
///   part reads that embedding and the inner products of all pairs of embeddings.
/// - dcnv2 (Wang et al. 2021): the vector x_0 (n) is the concatenation of dense features and
///   embeddings. Cross layer l computes x_(l+1) = x_0 * (W_l x_l + b_l) + x_l, with W_l (n, n) and
///   b_l (n). If `cross_rank` is not 0, W_l = U V, with U (n, cross_rank) and V (cross_rank, n).
///   The deep part reads x_0 ("parallel") or the output of the cross layers ("stacked"). If
///   parallel, the last Linear reads the outputs of both.
std::shared_ptr<Recommender> make_interaction(const RecommenderConfig& config,
                                              const RecommenderInputs& inputs, c10::Device device);

/// Creates din: Zhou et al. 2018 (arXiv 1706.06978). Let S be the number of sequences, and N =
/// num_targets. Symbols:
///
/// - t: index of an event in the sample's sequences
/// - e_t: vector (S * dim), embeddings of event t, concatenated over the sequences
/// - v: vector (N * dim), embeddings of the candidate, concatenated. The candidate
///   (RecommenderInputs::Sequence) is the value of the sparse features that share a table with a
///   sequence.
/// - e'_t: vector (N * dim), the embeddings in e_t that come from the same tables as v, in the same
///   order
/// - f: local activation unit, a network of layers with PReLU and one output
/// - a_t = f([v, e_t, v - e'_t, v * e'_t]): weight of event t, a scalar
///
/// The interest is the vector sum_t a_t e_t. The weights a_t are not normalized by a softmax, so
/// they need not sum to 1. The deep part reads the interest, dense features and embeddings.
std::shared_ptr<Recommender> make_din(const RecommenderConfig& config,
                                      const RecommenderInputs& inputs, c10::Device device);

/// Creates dien: Zhou et al. 2019 (arXiv 1809.03672). The event vectors e_t and the candidate v are
/// as in din. Steps of the forward pass:
///
/// 1. A GRU over the e_t gives states h_t, vectors of RecommenderConfig::interest elements.
/// 2. The attention of event t is the scalar a_t = softmax_t(h_t W v). W is a learned matrix
///    (interest, N * dim).
/// 3. An AUGRU reads the h_t: a GRU in which the update gate of event t is multiplied by a_t. Its
///    final state is the interest.
/// 4. The deep part reads the interest, dense features, embeddings and sum_t e_t.
///
/// The auxiliary loss of a sample is 1 / (length - 1) times a sum over its events t from the second
/// on. The term of event t is -log p(h_(t-1), e_t) - log(1 - p(h_(t-1), n_t)). Here n_t is the
/// vector of a negative, another event of the batch. The function p is a network with hidden widths
/// RecommenderConfig::auxiliary. Its result is a probability.
std::shared_ptr<Recommender> make_dien(const RecommenderConfig& config,
                                       const RecommenderInputs& inputs, c10::Device device);

/// Creates can: Bian et al. 2022 (arXiv 2011.05625). A co-action is a pair of an item (a sparse
/// feature) and a sequence. It has two tables of its own:
///
/// - The first table holds, for each item id, the weights and biases of a micro-MLP. The micro-MLP
///   has tanh between its layers.
/// - The second table holds, for each event id, an input of the micro-MLP.
///
/// The result of a co-action is a vector, computed in these steps:
///
/// 1. For each event, the micro-MLP reads the elementwise powers 1 to `orders` of the event's
///    input, one after the other.
/// 2. The outputs of all layers for all powers are concatenated.
/// 3. These vectors are summed over the events.
///
/// The deep part reads the results of all co-actions, dense features, embeddings and the sums of
/// the sequences' embeddings.
std::shared_ptr<Recommender> make_can(const RecommenderConfig& config,
                                      const RecommenderInputs& inputs, c10::Device device);

/// Creates mmoe: Ma et al. 2018. The vector x (n) is the concatenation of dense features and
/// embeddings. There are E = RecommenderConfig::experts experts f_i. They are towers that all tasks
/// share. Task k has a gate and a tower. The gate is a matrix G_k (E, n). The scalar softmax(G_k
/// x)_i is the weight of expert i. The tower of task k reads the vector sum_i softmax(G_k x)_i
/// f_i(x).
std::shared_ptr<Recommender> make_mmoe(const RecommenderConfig& config,
                                       const RecommenderInputs& inputs, c10::Device device);

/// Creates a Linear of a model, uninitialised. Recommender::set_compute_dtype sets its dtype.
std::shared_ptr<mx::Linear> tower_linear(int64_t in, int64_t out, const std::string& name,
                                         c10::Device device, bool bias = true);
/// Creates the last Linear of a model, with a bias and one output. It stays float32.
std::shared_ptr<mx::Linear> head_linear(int64_t in, const std::string& name, c10::Device device);

/// Returns x in the dtype of the weights of `linear`.
at::Tensor in_dtype_of(const mx::Linear& linear, const at::Tensor& x);
/// Returns x in float32 if it is bfloat16, otherwise x.
at::Tensor widened(const at::Tensor& x);
/// Returns widened(linear(x)). The product is in the dtype of the weights.
at::Tensor wide_linear(mx::Linear& linear, const at::Tensor& x);

/// Returns the embeddings of the candidate, (B, num_targets * dim): the embeddings of all features
/// that share a table with a sequence, concatenated. `features` is the result of
/// Recommender::features.
at::Tensor candidate_of(const RecommenderConfig& config, const RecommenderInputs& inputs,
                        const at::Tensor& features);
/// Returns the number of sequences that share a table with a feature.
int64_t num_targets(const RecommenderInputs& inputs);

}  // namespace dovetail::models
