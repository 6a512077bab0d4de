#include "engine/request_check.h"

#include <cmath>
#include <string>
#include <string_view>

#include "engine/image_queue.h"

namespace percheron::engine {

namespace {

Error invalid(std::string message) {
    return Error(ErrorCode::invalid_argument, std::move(message), reasons::invalid_value);
}

// Written so that NaN fails too.
Status check_range(std::string_view name, double value, bool inside, std::string_view range) {
    if (!inside || !std::isfinite(value)) {
        return invalid(std::string(name) + " must be " + std::string(range) + ", not " +
                       std::to_string(value));
    }
    return {};
}

Status check_tokens(std::string_view place, const std::vector<TokenId>& tokens,
                    std::uint32_t vocabulary) {
    for (const TokenId token : tokens) {
        if (to_int(token) < 0 || static_cast<std::uint32_t>(to_int(token)) >= vocabulary) {
            return invalid(std::string(place) + " holds token id " + std::to_string(to_int(token)) +
                           "; ids go from 0 to " + std::to_string(vocabulary - 1));
        }
    }
    return {};
}

Status check_sampling(const SamplingParameters& sampling, std::uint32_t vocabulary) {
    const SamplingParameters& s = sampling;
    PERCHERON_TRY(check_range("temperature", s.temperature, s.temperature >= 0, "at least 0"));
    PERCHERON_TRY(
        check_range("top_p", s.top_p, s.top_p > 0 && s.top_p <= 1, "above 0 and at most 1"));
    PERCHERON_TRY(
        check_range("min_p", s.min_p, s.min_p >= 0 && s.min_p < 1, "at least 0 and below 1"));
    PERCHERON_TRY(check_range("top_k", s.top_k, s.top_k >= 0, "at least 0"));
    PERCHERON_TRY(check_range("repetition_penalty", s.repetition_penalty, s.repetition_penalty > 0,
                              "above 0"));
    PERCHERON_TRY(check_range("presence_penalty", s.presence_penalty,
                              s.presence_penalty >= -2 && s.presence_penalty <= 2,
                              "between -2 and 2"));
    PERCHERON_TRY(check_range("frequency_penalty", s.frequency_penalty,
                              s.frequency_penalty >= -2 && s.frequency_penalty <= 2,
                              "between -2 and 2"));
    PERCHERON_TRY(check_range("top_logprobs", s.top_logprobs,
                              s.top_logprobs >= -1 && s.top_logprobs <= most_top_logprobs,
                              "at most " + std::to_string(most_top_logprobs)));
    std::vector<TokenId> biased;
    for (const auto& [token, bias] : s.logit_bias) {
        PERCHERON_TRY(check_range("logit_bias", bias, true, "finite"));
        biased.push_back(token);
    }
    return check_tokens("logit_bias", biased, vocabulary);
}

// Sides, placeholders and canvas of one image agree, and the tower holds it.
Status check_image(const GenerationRequest& request, const PromptImage& image,
                   const RequestLimits& limits) {
    if (image.count > limits.image_tokens) {
        return invalid("an image has " + std::to_string(image.count) +
                       " tokens, and the vision part holds at most " +
                       std::to_string(limits.image_tokens) + "; send a smaller one");
    }
    const std::uint64_t patches = std::uint64_t{image.grid_height} * image.grid_width;
    const ImageCanvas& canvas = *image.canvas;
    if (image.grid_height % limits.merge != 0 || image.grid_width % limits.merge != 0 ||
        patches != image.count * limits.merge * limits.merge ||
        canvas.height != image.grid_height * limits.patch ||
        canvas.width != image.grid_width * limits.patch ||
        canvas.pixels.size() != std::uint64_t{3} * canvas.height * canvas.width) {
        return invalid("an image's tokens, grid and canvas do not agree");
    }
    for (std::uint32_t i = 0; i < image.count; ++i) {
        if (request.prompt[image.first + i] != limits.image_token) {
            return invalid("an image stands where the prompt has no image placeholder");
        }
    }
    return {};
}

Status check_images(const GenerationRequest& request, const RequestLimits& limits) {
    if (!request.images.empty() && !limits.has_vision) {
        return Error(ErrorCode::unsupported,
                     "the request holds an image, and this engine has no vision part; send text",
                     reasons::unsupported_parameter);
    }
    std::uint64_t free = 0;  // the first place of the prompt that no image before holds
    for (const PromptImage& image : request.images) {
        const std::uint64_t end = std::uint64_t{image.first} + image.count;
        if (image.count == 0 || image.first < free || end > request.prompt.size() ||
            image.canvas == nullptr) {
            return invalid(
                "the images must stand in the prompt one after another, each with its "
                "canvas and at least one token");
        }
        free = end;
        PERCHERON_TRY(check_image(request, image, limits));
    }
    const Bytes needed = feature_bytes(request.images, limits.feature_row_bytes / sizeof(float));
    if (needed > limits.image_memory) {
        return invalid("the images of a request need " + std::to_string(needed) +
                       " bytes of features, and " + std::to_string(limits.image_memory) +
                       " are planned for all; send fewer or smaller images");
    }
    return {};
}

}  // namespace

Status check_request(const GenerationRequest& request, const RequestLimits& limits) {
    PERCHERON_TRY(check_sampling(request.sampling, limits.vocabulary));
    PERCHERON_TRY(check_tokens("the prompt", request.prompt, limits.vocabulary));
    PERCHERON_TRY(check_tokens("stop_token_ids", request.extra_stop_tokens, limits.vocabulary));
    if (request.prompt.empty()) {
        return invalid("the prompt must hold at least one token");
    }
    if (request.max_tokens && *request.max_tokens == 0) {
        return invalid("max_tokens must be at least 1");
    }
    if (request.choices == 0 || request.choices > limits.most_choices) {
        return invalid("n must be between 1 and " + std::to_string(limits.most_choices) +
                       ", the choices this engine holds at a time, not " +
                       std::to_string(request.choices));
    }
    if (request.thinking_budget && !limits.has_think_tags) {
        return Error(ErrorCode::unsupported,
                     "thinking_budget needs a model whose tokenizer has <think> and </think>",
                     reasons::unsupported_parameter);
    }
    PERCHERON_TRY(check_images(request, limits));
    PERCHERON_TRY(
        check_range("prompt_logprobs", request.prompt_logprobs,
                    request.prompt_logprobs >= -1 && request.prompt_logprobs <= most_top_logprobs,
                    "at most " + std::to_string(most_top_logprobs)));
    const std::uint64_t prompt = request.prompt.size();
    const std::uint64_t output = request.max_tokens.value_or(1);
    if (prompt + output > limits.context_tokens) {
        return Error(ErrorCode::invalid_argument,
                     "the prompt has " + std::to_string(prompt) + " tokens and " +
                         (request.max_tokens ? "max_tokens is " + std::to_string(output)
                                             : "needs room for a reply") +
                         ", but prompt and reply together can have at most " +
                         std::to_string(limits.context_tokens) +
                         " tokens here; shorten the prompt or ask for fewer tokens",
                     reasons::context_length_exceeded);
    }
    if (request.min_tokens > request.max_tokens.value_or(limits.context_tokens)) {
        return invalid("min_tokens is " + std::to_string(request.min_tokens) +
                       " but max_tokens allows only " +
                       std::to_string(request.max_tokens.value_or(limits.context_tokens)));
    }
    return {};
}

}  // namespace percheron::engine
