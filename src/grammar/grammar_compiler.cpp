#include "grammar/grammar_compiler.h"

#include <algorithm>
#include <ctime>
#include <exception>
#include <list>
#include <mutex>
#include <unordered_map>
#include <utility>

#include <xgrammar/xgrammar.h>

#include "percheron/engine.h"

namespace percheron::grammar {
namespace {

double thread_seconds() {
    timespec now{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

class Constraint final : public TokenConstraint {
  public:
    Constraint(const xgrammar::CompiledGrammar& grammar, double token_seconds)
        : matcher_(grammar), token_seconds_(token_seconds) {}

    Status fill(std::span<std::uint32_t> allowed) override {
        const double start = thread_seconds();
        std::int64_t shape[1] = {static_cast<std::int64_t>(allowed.size())};
        DLTensor tensor{};
        tensor.data = allowed.data();
        tensor.device = {kDLCPU, 0};
        tensor.ndim = 1;
        tensor.dtype = xgrammar::GetBitmaskDLType();
        tensor.shape = shape;
        try {
            matcher_.FillNextTokenBitmask(&tensor);
        } catch (const std::exception& fault) {
            return Error(ErrorCode::internal,
                         std::string("the reply's grammar failed: ") + fault.what());
        }
        // What one token costs may grow with the text (ambiguous rules): a mask thread must not be
        // lost to it.
        if (accept_seconds_ + thread_seconds() - start > token_seconds_) {
            return Error(ErrorCode::internal,
                         "the reply's grammar takes more time for a token than it may; make it "
                         "less ambiguous",
                         reasons::constraint_too_costly);
        }
        return {};
    }

    bool accept(TokenId token) override {
        const double start = thread_seconds();
        bool accepted = false;
        try {
            accepted = matcher_.AcceptToken(to_int(token));
        } catch (const std::exception&) {
            return false;
        }
        accept_seconds_ = thread_seconds() - start;
        return accepted;
    }

    void roll_back(std::size_t count) override { matcher_.Rollback(static_cast<int>(count)); }

  private:
    xgrammar::GrammarMatcher matcher_;
    double token_seconds_;
    double accept_seconds_ = 0;
};

class Compiled final : public OutputGrammar {
  public:
    Compiled(xgrammar::CompiledGrammar grammar, std::string rules, double token_seconds)
        : grammar_(std::move(grammar)), rules_(std::move(rules)), token_seconds_(token_seconds) {}
    std::unique_ptr<TokenConstraint> start() const override {
        return std::make_unique<Constraint>(grammar_, token_seconds_);
    }
    std::string_view rules() const override { return rules_; }
    std::size_t bytes() const { return grammar_.MemorySizeBytes() + rules_.size(); }

  private:
    xgrammar::CompiledGrammar grammar_;
    std::string rules_;
    double token_seconds_;
};

// Added tokens get bytes that no text has: a rule about characters never lets one in, and Token(id)
// does.
std::string bytes_for_rules(const Tokenizer& tokenizer, TokenId id) {
    if (!tokenizer.is_added(id)) return std::string(tokenizer.bytes_of(id));
    std::string bytes(1, '\xff');
    bytes += std::to_string(to_int(id));
    return bytes;
}

xgrammar::TokenizerInfo vocabulary_of(const Tokenizer& tokenizer,
                                      const GrammarCompilerOptions& options) {
    const std::uint32_t size = std::max(options.vocabulary, tokenizer.size());
    std::vector<std::string> bytes;
    bytes.reserve(size);
    for (std::uint32_t v = 0; v < size; ++v)
        bytes.push_back(bytes_for_rules(tokenizer, TokenId(static_cast<int>(v))));
    std::vector<std::int32_t> stops;
    for (const TokenId stop : options.stop_tokens)
        stops.push_back(to_int(stop));
    return xgrammar::TokenizerInfo(bytes, xgrammar::VocabType::RAW, static_cast<int>(size), stops);
}

}  // namespace

class GrammarCompiler::State {
  public:
    State(const Tokenizer& tokenizer, const GrammarCompilerOptions& options)
        : options(options), compiler(vocabulary_of(tokenizer, options), 1, false) {}

    struct Entry {
        std::string rules;
        std::shared_ptr<const Compiled> grammar;
        std::size_t bytes = 0;
    };

    std::shared_ptr<const OutputGrammar> find(const std::string& rules) {
        const std::lock_guard lock(mutex);
        const auto found = by_rules.find(rules);
        if (found == by_rules.end()) {
            ++misses;
            return nullptr;
        }
        ++hits;
        entries.splice(entries.begin(), entries, found->second);
        return found->second->grammar;
    }

    void keep(const std::string& rules, std::shared_ptr<const Compiled> grammar) {
        const std::lock_guard lock(mutex);
        const std::size_t size = grammar->bytes() + 2 * rules.size();
        if (size > options.cache_bytes || by_rules.contains(rules)) return;
        entries.push_front({rules, std::move(grammar), size});
        by_rules.emplace(entries.front().rules, entries.begin());
        bytes += size;
        while (bytes > options.cache_bytes) {
            bytes -= entries.back().bytes;
            by_rules.erase(entries.back().rules);
            entries.pop_back();
        }
    }

    const GrammarCompilerOptions options;
    xgrammar::GrammarCompiler compiler;
    std::mutex compiling;

    mutable std::mutex mutex;
    std::list<Entry> entries;  // latest used first
    std::unordered_map<std::string_view, std::list<Entry>::iterator> by_rules;
    std::size_t bytes = 0;
    std::uint64_t hits = 0;
    std::uint64_t misses = 0;
};

GrammarCompiler::GrammarCompiler(const Tokenizer& tokenizer, GrammarCompilerOptions options)
    : state_(std::make_unique<State>(tokenizer, options)) {}

GrammarCompiler::~GrammarCompiler() = default;

Result<std::shared_ptr<const OutputGrammar>> GrammarCompiler::compile(const std::string& rules) {
    if (auto known = state_->find(rules)) return known;
    const std::lock_guard one_at_a_time(state_->compiling);
    if (auto known = state_->find(rules)) return known;
    try {
        auto grammar = std::make_shared<const Compiled>(state_->compiler.CompileGrammar(rules),
                                                        rules, state_->options.token_seconds);
        state_->keep(rules, grammar);
        return std::shared_ptr<const OutputGrammar>(std::move(grammar));
    } catch (const std::exception& fault) {
        return Error(ErrorCode::invalid_argument,
                     std::string("the grammar cannot be compiled: ") + fault.what());
    }
}

GrammarCompiler::CacheStatus GrammarCompiler::cache_status() const {
    const std::lock_guard lock(state_->mutex);
    return {state_->entries.size(), state_->bytes, state_->hits, state_->misses};
}

}  // namespace percheron::grammar
