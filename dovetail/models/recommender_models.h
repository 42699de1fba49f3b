#pragma once

#include "dovetail/models/recommender.h"

/// Models of make_recommender, one source file per model.
namespace dovetail::models {

/// Creates a model of feature interactions:
///
/// - wide_deep (Cheng et al. 2016): a linear model of all features, plus the deep part, which reads
///   dense features and embeddings.
/// - deepfm (Guo et al. 2017): a linear model of the sparse features, the inner products of all
///   pairs of embeddings, and the deep part. Dense features go to the deep part only.
/// - dlrm (Naumov et al. 2019): a tower maps the dense features to one more embedding. A second
///   tower reads that embedding and the inner products of all pairs.
/// - dcnv2 (Wang et al. 2021): x_(l+1) = x_0 * (W_l x_l + b_l) + x_l over dense features and
///   embeddings. W_l = U V has rank `cross_rank`.
std::shared_ptr<Recommender> make_interaction(const RecommenderConfig& config,
                                              const RecommenderInputs& inputs, c10::Device device);

/// Creates din: Zhou et al. 2018 (arXiv 1706.06978). Symbols:
///
/// - e_t: embeddings of event t, concatenated over the sequences
/// - v: embeddings of the candidate, in the tables that sequences share
/// - e'_t: the columns of e_t from these tables
/// - f: local activation unit, layers with PReLU and one output
///
/// a_t = f([v, e_t, v - e'_t, v * e'_t]), and the interest is sum_t a_t e_t. No softmax makes the
/// weights a_t sum to 1. The deep part reads the interest, dense features and embeddings.
std::shared_ptr<Recommender> make_din(const RecommenderConfig& config,
                                      const RecommenderInputs& inputs, c10::Device device);

/// Creates dien: Zhou et al. 2019 (arXiv 1809.03672). A GRU over the events gives h_t. The
/// attention is a_t = softmax_t(h_t W v), with v the embeddings of the candidate. An AUGRU over h_t
/// is a GRU whose update gate is a_t u_t. Its last state is the interest. The deep part reads the
/// interest, dense features, embeddings and the sum of the events.
///
/// The auxiliary loss of a sample is 1 / (length - 1) times the sum over its events from the second
/// on. Its terms are -log p(h_(t-1), e_t) - log(1 - p(h_(t-1), n_t)), with n_t an event of another
/// sample.
std::shared_ptr<Recommender> make_dien(const RecommenderConfig& config,
                                       const RecommenderInputs& inputs, c10::Device device);

/// Creates can: Bian et al. 2022 (arXiv 2011.05625). A row of the item's own table holds weights
/// and biases of an MLP with tanh between its layers. Its inputs are the powers 1 to `orders` of a
/// row of the event's own table. A co-action is the concatenated outputs of all its layers, summed
/// over the events. The deep part reads all co-actions, dense features, embeddings and the sums of
/// the sequences.
std::shared_ptr<Recommender> make_can(const RecommenderConfig& config,
                                      const RecommenderInputs& inputs, c10::Device device);

/// Creates mmoe: Ma et al. 2018. Task k has a tower over sum_i softmax(G_k x)_i f_i(x). x is dense
/// features and embeddings; f_i are the experts, which all tasks share.
std::shared_ptr<Recommender> make_mmoe(const RecommenderConfig& config,
                                       const RecommenderInputs& inputs, c10::Device device);

/// Creates a Linear of a model, with a bias. `tower_linear` is quantized if a recipe says so.
/// `head_linear` has one output and is not quantized.
std::shared_ptr<mx::Linear> tower_linear(int64_t in, int64_t out, const std::string& name,
                                         c10::Device device, bool bias = true);
std::shared_ptr<mx::Linear> head_linear(int64_t in, const std::string& name, c10::Device device);

/// Returns the embeddings of the candidate: features that share a table with a sequence,
/// concatenated, (B, targets * dim). `features` is the result of Recommender::features.
at::Tensor candidate_of(const RecommenderConfig& config, const RecommenderInputs& inputs,
                        const at::Tensor& features);
int64_t num_targets(const RecommenderInputs& inputs);

}  // namespace dovetail::models
