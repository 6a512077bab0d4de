#include "engine/engine_start.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "cache/cache_shape.h"
#include "draft/copy_proposer.h"
#include "draft/mtp_proposer.h"
#include "ops/batch.h"
#include "sampling/sampler.h"

namespace percheron::engine {

Status check_options(const NetworkParts& parts, const LocalEngineOptions& options) {
    const model::ModelConfig& config = parts.network->config();
    const auto wrong = [](std::string message) {
        return Error(ErrorCode::invalid_argument, std::move(message));
    };
    const std::uint64_t kv_tokens = std::uint64_t{options.scheduler.pages} * ops::page_tokens;
    if (options.context_tokens < 2 || options.context_tokens > kv_tokens) {
        return wrong("the context is " + std::to_string(options.context_tokens) +
                     " tokens but the pool holds " + std::to_string(kv_tokens));
    }
    if (options.draft.mtp && parts.mtp == nullptr) {
        return wrong("drafting with the MTP layer needs one that was loaded");
    }
    if (options.prefix_disk && options.scheduler.checkpoints == 0) {
        return wrong("--prefix-disk needs the prefix cache; leave it out or --prefix-cache off");
    }
    if (options.draft.depth > 0 && options.scheduler.draft_rows == 0) {
        return wrong("drafts need rows of the steps: draft_rows is 0");
    }
    std::vector<TokenId> tokens = options.banned_tokens;
    tokens.insert(tokens.end(), options.stop_tokens.begin(), options.stop_tokens.end());
    if (options.think_tags) {
        tokens.push_back(options.think_tags->open);
        tokens.push_back(options.think_tags->close);
    }
    for (const TokenId token : tokens) {
        if (to_int(token) < 0 || static_cast<std::size_t>(to_int(token)) >= config.vocabulary) {
            return wrong("token id " + std::to_string(to_int(token)) +
                         " of the options is outside the vocabulary");
        }
    }
    return {};
}

EngineDescription describe(const NetworkParts& parts, const LocalEngineOptions& options) {
    EngineDescription description;
    description.model_name = options.model_name;
    description.vocabulary = static_cast<std::uint32_t>(parts.network->config().vocabulary);
    description.context_tokens = options.context_tokens;
    description.kv_tokens = std::uint64_t{options.scheduler.pages} * ops::page_tokens;
    description.page_tokens = ops::page_tokens;
    description.kv_dtype = cache::name_of_kv_dtype(options.kv_dtype);
    description.max_running = options.scheduler.max_running;
    description.stop_tokens = options.stop_tokens;
    description.grammars = true;
    description.vision = parts.tower != nullptr;
    description.limits = limits_of(parts, options);
    return description;
}

draft::StepShape step_shape(const NetworkParts& parts) {
    const model::ModelConfig& config = parts.network->config();
    return {static_cast<double>(config.experts), static_cast<double>(config.experts_per_token)};
}

DraftRounds::Proposers make_proposers(NetworkParts& parts, const cache::CacheStore& caches,
                                      const LocalEngineOptions& options) {
    DraftRounds::Proposers proposers;
    if (options.draft.depth == 0) {
        return proposers;
    }
    if (parts.proposer) {
        proposers.push_back(std::move(parts.proposer));
    }
    if (options.draft.copy) {
        proposers.push_back(std::make_unique<draft::CopyProposer>(options.scheduler.max_running,
                                                                  draft::CopyOptions{}));
    }
    if (options.draft.mtp) {
        proposers.push_back(std::make_unique<draft::MtpProposer>(
            *parts.network, std::move(parts.mtp), caches.views().latent.back(),
            options.scheduler.max_running));
    }
    return proposers;
}

void add_shape(cache::TierOptions& files, const cache::CacheShape& shape) {
    files.page_bytes = shape.page_bytes();
    files.state_bytes = shape.checkpoint_bytes();
    files.identity += "\ncaches";
    for (const std::size_t number :
         {shape.sparse_layers, shape.latent, shape.index_dim, shape.index_pool,
          static_cast<std::size_t>(shape.kv_dtype), shape.kda_layers, shape.kda_heads,
          shape.kda_dim, std::size_t{shape.conv_history}}) {
        files.identity += ' ' + std::to_string(number);
    }
}

RequestLimits limits_of(const NetworkParts& parts, const LocalEngineOptions& options) {
    RequestLimits limits;
    limits.vocabulary = static_cast<std::uint32_t>(parts.network->config().vocabulary);
    limits.context_tokens = options.context_tokens;
    limits.most_choices = options.scheduler.max_running + options.max_queued;
    limits.has_think_tags = options.think_tags.has_value();
    limits.has_vision = parts.tower != nullptr;
    if (parts.tower) {
        const model::VisionConfig& vision = parts.tower->config();
        limits.image_token = parts.network->config().image_token;
        limits.patch = vision.patch;
        limits.merge = vision.merge;
        limits.image_tokens = options.image_tokens;
        limits.feature_row_bytes = vision.out_hidden * sizeof(float);
        limits.image_memory = options.image_memory;
    }
    return limits;
}

std::unique_ptr<Sequence> make_sequence(const GenerationRequest& request,
                                        const LocalEngineOptions& options, std::size_t vocabulary,
                                        std::uint64_t seed, std::uint32_t choice,
                                        EngineEventSink& sink) {
    auto sequence = std::make_unique<Sequence>();
    sequence->choice = choice;
    sequence->priority = request.priority;
    sequence->sink = &sink;
    sequence->sampling = request.sampling;
    sequence->seed = seed;
    sequence->min_tokens = request.min_tokens;
    sequence->prompt_tokens = static_cast<std::uint32_t>(request.prompt.size());
    sequence->limit_is_context = !request.max_tokens;
    sequence->token_limit =
        request.max_tokens.value_or(options.context_tokens - sequence->prompt_tokens);
    sequence->ignore_eos = request.ignore_eos;
    sequence->stop_tokens = options.stop_tokens;
    sequence->stop_tokens.insert(sequence->stop_tokens.end(), request.extra_stop_tokens.begin(),
                                 request.extra_stop_tokens.end());
    sequence->deadline = request.deadline;
    // Room for the whole reply, so that no step has to make any.
    const std::size_t most_tokens = std::size_t{sequence->prompt_tokens} + sequence->token_limit;
    sequence->tokens.reserve(most_tokens);
    sequence->pages.reserve(cache::pages_for(most_tokens));
    sequence->tokens.insert(sequence->tokens.end(), request.prompt.begin(), request.prompt.end());
    sequence->drafting.wanted = request.draft;
    for (const PromptImage& image : request.images) {
        sequence->images.push_back({image, nullptr});
        sequence->image_spans.push_back({image.first, image.count, image.content_hash});
    }
    // Whoever ignores the end asks for text of any kind.
    if (request.loop_guard.value_or(options.loop_guard) && !request.ignore_eos) {
        sequence->loop_guard = std::make_unique<LoopGuard>();
    }
    sequence->cache_salt = request.cache_salt;
    if (request.report_progress && choice == 0) {
        sequence->progress = 0;
    }
    sequence->prompt_logprobs = choice == 0 ? request.prompt_logprobs : -1;
    // What the cache holds would be left out of the computing, and of the scores.
    sequence->use_cache = request.use_cache && request.prompt_logprobs < 0;
    if (options.user_token) {
        const auto user =
            std::find(request.prompt.begin(), request.prompt.end(), *options.user_token);
        if (user != request.prompt.end()) {
            sequence->system_tokens = static_cast<std::uint32_t>(user - request.prompt.begin());
        }
    }
    if (options.think_tags) {
        sequence->thinking =
            ThinkingBudget(*options.think_tags, request.thinking_budget, request.prompt);
    }
    if (request.grammar) {
        sequence->masks = std::make_shared<AnswerMasks>(request.grammar->start(),
                                                        sequence->stop_tokens, vocabulary);
    }
    if (sampling::uses_counts(request.sampling)) {
        sequence->counts.emplace(vocabulary);
        sequence->counts->add(request.prompt);
    }
    sequence->submitted = Clock::now();
    return sequence;
}

}  // namespace percheron::engine
