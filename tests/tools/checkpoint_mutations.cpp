// Damages small model folders at random and opens them, as long as asked: never a crash, never a
// hang, and never a wrong load that could have been seen.
//
//   checkpoint_mutations [COUNT] [SEED]
//
// The folders hold every format: BF16 and F32, FP8 blocks, W4A16 of the experts or of all it fits,
// NVFP4 in both dialects, several of these at once, and EXL3 with stacks, pieces and F16, each with
// the account that its tool writes.  Each trial damages one thing of a folder: bytes of a header,
// of the index or of a JSON file, a length, a type, a shape, a name, a number of the config, of the
// account or among the scales, bytes of the tokenizer.  What cannot be right is refused with a
// message that names a file or a tensor; what opens is loaded into a network and run for a few
// tokens.  A trial that takes 30 seconds of computing or ends the process is printed.
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>

#include <sys/time.h>
#include <unistd.h>

#include "checkpoint/checkpoint.h"
#include "checkpoint/names.h"
#include "checkpoint/small_model.h"
#include "checkpoint/trellis_model.h"
#include "model/network.h"
#include "ops/cpu/cpu_backend.h"
#include "support/host_caches.h"
#include "support/read_whole.h"
#include "support/sequence_runner.h"
#include "text/tokenizer.h"

namespace percheron::tests {
namespace {

using namespace checkpoint;
using namespace checkpoint::test;

char what[512];  // the running trial, for the signal handler

extern "C" void report_signal(int number) {
    static const char head[] = "checkpoint_mutations: ended or hung in: ";
    [[maybe_unused]] auto ignored = ::write(2, head, sizeof head - 1);
    ignored = ::write(2, what, std::strlen(what));
    ignored = ::write(2, "\n", 1);
    std::signal(number, SIG_DFL);
    std::raise(number);
}

[[noreturn]] void fail(const std::string& why) {
    std::fprintf(stderr, "checkpoint_mutations: %s: %s\n", what, why.c_str());
    std::exit(1);
}

void check(const Status& status) {
    if (!status.ok()) fail(status.error().message());
}

class Trials {
  public:
    explicit Trials(std::uint64_t seed) : random_(seed) {
        const auto fits = [](const ExpectedTensor& tensor, std::size_t width) {
            return tensor.shape.size() == 2 && tensor.shape[1] % width == 0;
        };
        const auto is_expert = [](const ExpectedTensor& tensor) {
            return tensor.role == TensorRole::routed_expert;
        };
        const Json modelopt = {
            {"quant_method", "modelopt"}, {"quant_algo", "NVFP4"}, {"ignore", {"lm_head"}}};
        const Json compressed = {{"quant_method", "compressed-tensors"},
                                 {"format", "pack-quantized"},
                                 {"config_groups", {{"group_0", {{"targets", {"Linear"}}}}}},
                                 {"ignore", {"lm_head", "re:.*self_attn.*"}}};
        add(small_model(1), Json());
        add(small_model(2, small_config(),
                        [&](const ExpectedTensor& tensor) {
                            return is_expert(tensor) && fits(tensor, 16) ? WeightFormat::nvfp4
                                                                         : WeightFormat::fp8_block;
                        }),
            modelopt);
        add(small_model(3, small_config(128),
                        [&](const ExpectedTensor& tensor) {
                            return is_expert(tensor) ? WeightFormat::w4a16 : WeightFormat::bf16;
                        }),
            compressed);
        add(small_model(4, small_config(128),
                        [&](const ExpectedTensor& tensor) {
                            return fits(tensor, 128) ? WeightFormat::w4a16 : WeightFormat::f32;
                        }),
            compressed);
        add(small_model(
                5, small_config(),
                [&](const ExpectedTensor& tensor) {
                    return fits(tensor, 16) ? WeightFormat::nvfp4 : WeightFormat::bf16;
                },
                true),
            compressed);
        add(small_model(
                6, small_config(128),
                [&](const ExpectedTensor& tensor) {
                    if (is_expert(tensor)) return WeightFormat::nvfp4;
                    return fits(tensor, 128) ? WeightFormat::w4a16 : WeightFormat::fp8_block;
                },
                true),
            compressed);
        models_.push_back(trellis_model(7));
        tokenizer_ = *read_text_file(fs::path(PERCHERON_SOURCE_DIR) / "models/nano/tokenizer.json",
                                     1u << 30);
    }

    void run(std::size_t number) {
        const std::size_t kind = random_() % kinds.size();
        std::snprintf(what, sizeof what, "trial %zu, %s", number, kinds[kind].name);
        ++counts_[kinds[kind].name];
        (this->*kinds[kind].damage)();
    }

    void print() const {
        for (const auto& [name, count] : counts_) {
            const auto refused = refused_.find(name);
            std::printf("  %-28s %6zu trials, %6zu refused\n", name.c_str(), count,
                        refused == refused_.end() ? 0 : refused->second);
        }
        std::printf("  %zu damaged folders opened, %zu were run\n", opened_, ran_);
    }

  private:
    struct Kind {
        const char* name;
        void (Trials::*damage)();
    };
    static const std::vector<Kind> kinds;

    enum class Expected {
        anything,
        refusal,
        refusal_when_read,  // at the latest when the network asks for its weights
    };

    void add(SmallModel model, const Json& claim) {
        if (!claim.is_null()) model.config["quantization_config"] = claim;
        models_.push_back(std::move(model));
    }
    const SmallModel& any_model() { return models_[random_() % models_.size()]; }
    std::string any_name(const SmallModel& model) {
        auto place = model.tensors.begin();
        std::advance(place, static_cast<std::ptrdiff_t>(random_() % model.tensors.size()));
        return place->first;
    }
    void note(const std::string& detail) {
        const std::size_t used = std::strlen(what);
        std::snprintf(what + used, sizeof what - used, ", %s", detail.c_str());
    }
    static const char* kind_now() {
        static std::string name;
        const std::string text = what;
        const std::size_t first = text.find(", ") + 2;
        name = text.substr(first, text.find(", ", first) - first);
        return name.c_str();
    }

    // One to four bytes changed, taken out or put in, below `limit`.
    std::string bytes_changed(std::string text, std::size_t limit) {
        static const std::string alphabet = "0123456789{}[]\",:-.eE \x00\xff";
        for (std::size_t changes = 1 + random_() % 4; changes > 0 && !text.empty(); --changes) {
            const std::size_t at = random_() % std::min(limit, text.size());
            const std::size_t how = random_() % 4;
            if (how == 0) text[at] = static_cast<char>(random_());
            if (how == 1) text[at] = alphabet[random_() % alphabet.size()];
            if (how == 2) text.erase(at, 1 + random_() % 8);
            if (how == 3) text.insert(at, 1, alphabet[random_() % alphabet.size()]);
        }
        return text;
    }

    // Scales of activations may be missing or anything: they are read where they are asked for.
    static bool is_unused(const std::string& name) {
        return name.ends_with("input_scale") || name.ends_with("input_global_scale");
    }

    // ---- what is damaged

    void header_bytes() {
        const TemporaryFolder folder;
        any_model().write(folder.path());
        const fs::path file = folder.path() / "model.safetensors";
        const std::string good = *read_text_file(file, 1u << 30);
        std::uint64_t length = 0;
        std::memcpy(&length, good.data(), 8);
        check(write_text_file(file, bytes_changed(good, 8 + length)));
        open(folder.path(), Expected::anything);
    }

    void length_of_a_file() {
        const TemporaryFolder folder;
        const SmallModel& model = any_model();
        const std::size_t shards = 1 + random_() % 3;
        model.write(folder.path(), shards, [&](const std::string& name) {
            return std::hash<std::string>()(name) % shards;
        });
        const fs::path file = folder.path() / shard_name(random_() % shards, shards);
        const std::uint64_t size = fs::file_size(file);
        fs::resize_file(file, random_() % 3 == 0 ? size + 1 + random_() % 100 : random_() % size);
        open(folder.path(), Expected::refusal);
    }

    void length_of_the_header() {
        const TemporaryFolder folder;
        any_model().write(folder.path());
        const fs::path file = folder.path() / "model.safetensors";
        std::string bytes = *read_text_file(file, 1u << 30);
        std::uint64_t length = 0;
        std::memcpy(&length, bytes.data(), 8);
        const std::uint64_t wrong[] = {0,
                                       1,
                                       length - 1,
                                       length + 8,
                                       bytes.size(),
                                       ~std::uint64_t{0},
                                       std::uint64_t{1} << 62,
                                       random_()};
        const std::uint64_t chosen = wrong[random_() % std::size(wrong)];
        note(std::to_string(chosen));
        std::memcpy(bytes.data(), &chosen, 8);
        check(write_text_file(file, bytes));
        open(folder.path(), Expected::refusal);
    }

    void type_of_a_tensor() {
        SmallModel model = any_model();
        const std::string name = any_name(model);
        TestTensor& tensor = model.tensors[name];
        const DType types[] = {DType::f64, DType::f32, DType::bf16,    DType::f16, DType::f8_e4m3,
                               DType::i64, DType::i32, DType::boolean, DType::u8,  DType::f8_e5m2};
        const DType type = types[random_() % std::size(types)];
        // The same bytes under another type; a new width makes another last extent.
        const std::size_t width = size_of(type);
        if (tensor.shape.empty() || tensor.bytes.size() % width != 0 || type == tensor.dtype)
            return;
        std::size_t others = 1;
        for (std::size_t i = 0; i + 1 < tensor.shape.size(); ++i) {
            others *= tensor.shape[i];
        }
        if (tensor.bytes.size() / width % others != 0) return;
        note(name + " as " + std::string(name_of(type)));
        const auto is_half = [](DType dtype) {
            return dtype == DType::bf16 || dtype == DType::f16;
        };
        // Beside EXL3 a tensor may be either of the two, whose values nothing else tells apart.
        const bool sound = is_half(type) && is_half(tensor.dtype) &&
                           model.companions.contains("quantization_config.json");
        tensor.dtype = type;
        tensor.shape.back() = tensor.bytes.size() / width / others;
        const TemporaryFolder folder;
        model.write(folder.path());
        open(folder.path(), sound || is_unused(name) ? Expected::anything : Expected::refusal);
    }

    void shape_of_a_tensor() {
        SmallModel model = any_model();
        const std::string name = any_name(model);
        TestTensor& tensor = model.tensors[name];
        if (tensor.shape.empty()) return;
        note(name);
        const Shape before = tensor.shape;
        if (random_() % 2 == 0 && tensor.shape.size() == 2) {
            std::swap(tensor.shape[0], tensor.shape[1]);
        } else {
            std::size_t& extent = tensor.shape[random_() % tensor.shape.size()];
            const std::size_t rest = tensor.bytes.size() / extent;
            extent += 1 + random_() % 3;
            tensor.bytes.resize(rest * extent);
        }
        if (tensor.shape == before) return;
        const TemporaryFolder folder;
        model.write(folder.path());
        open(folder.path(), is_unused(name) ? Expected::anything : Expected::refusal);
    }

    void name_of_a_tensor() {
        SmallModel model = any_model();
        const std::string name = any_name(model);
        std::string other = name;
        switch (random_() % 4) {
            case 0:
                other.insert(random_() % other.size(), 1, 'x');
                break;
            case 1:
                other += ".extra";
                break;
            case 2:
                other.clear();
                break;
            default:
                other[random_() % other.size()] = 'Q';
        }
        note(name + " as " + other);
        const bool unused = is_unused(name);
        auto moved = model.tensors.extract(name);
        if (!other.empty()) {
            moved.key() = other;
            model.tensors.insert(std::move(moved));
        }
        const TemporaryFolder folder;
        model.write(folder.path());
        open(folder.path(), unused ? Expected::anything : Expected::refusal);
    }

    void index_file() {
        const TemporaryFolder folder;
        const SmallModel& model = any_model();
        model.write(folder.path(), 3,
                    [](const std::string& name) { return std::hash<std::string>()(name) % 3; });
        const fs::path file = folder.path() / "model.safetensors.index.json";
        std::string text = *read_text_file(file, 1u << 30);
        if (random_() % 2 == 0) {
            check(write_text_file(file, bytes_changed(text, text.size())));
            open(folder.path(), Expected::anything);
            return;
        }
        Json index = Json::parse(text);
        Json& map = index["weight_map"];
        const std::string name = any_name(model);
        note(name);
        if (random_() % 2 == 0) {
            map.erase(name);
        } else {
            const std::string now = map[name];
            for (std::size_t shard = 0; shard < 3; ++shard) {
                if (shard_name(shard, 3) != now) map[name] = shard_name(shard, 3);
            }
        }
        check(write_text_file(file, index.dump()));
        open(folder.path(), Expected::refusal);
    }

    void config_bytes() {
        const TemporaryFolder folder;
        any_model().write(folder.path());
        const char* const files[] = {"config.json", "generation_config.json"};
        const fs::path file = folder.path() / files[random_() % 2];
        const std::string good = *read_text_file(file, 1u << 30);
        check(write_text_file(file, bytes_changed(good, good.size())));
        open(folder.path(), Expected::anything);
    }

    void config_value() {
        const TemporaryFolder folder;
        const SmallModel& model = any_model();
        model.write(folder.path());
        Json config = model.config;
        std::vector<Json::json_pointer> places;
        const Json flat = config.flatten();
        for (const auto& entry : flat.items()) {
            places.emplace_back(entry.key());
        }
        const Json::json_pointer& place = places[random_() % places.size()];
        const std::vector<Json> values = {0,
                                          1,
                                          2,
                                          3,
                                          17,
                                          1000,
                                          65536,
                                          1u << 31,
                                          std::uint64_t{1} << 62,
                                          -1,
                                          -1e300,
                                          1e300,
                                          1e-40,
                                          0.5,
                                          "",
                                          "x",
                                          true,
                                          Json(),
                                          Json::array(),
                                          Json::object()};
        const Json& value = values[random_() % values.size()];
        note(place.to_string() + " = " + value.dump());
        config[place] = value;
        check(write_text_file(folder.path() / "config.json", config.dump()));
        open(folder.path(), Expected::anything);
    }

    // A number among the scales or vectors of the trunk that is none.
    void number_that_is_none() {
        SmallModel model = any_model();
        const std::string name = any_name(model);
        TestTensor& tensor = model.tensors[name];
        const bool plain = name.ends_with("norm.weight") || name.ends_with("conv1d.weight") ||
                           name.ends_with("_bias") || name.ends_with("A_log");
        const bool scales = name.ends_with("_scale") || name.ends_with("_scale_inv") ||
                            name.ends_with("_scale_2") || name.ends_with(".suh") ||
                            name.ends_with(".svh");
        const auto layer = layer_of(name);
        if (is_unused(name) || (!plain && !scales) || !layer || *layer > 2) return;
        note(name);
        const std::size_t width = size_of(tensor.dtype);
        const std::size_t at = random_() % (tensor.bytes.size() / width) * width;
        const std::uint32_t sign = random_() % 2;
        std::uint32_t bits = 0;
        switch (tensor.dtype) {
            case DType::f32:
                bits = 0x7f800000 | sign << 31 | (random_() % 2 == 0 ? 0 : random_() & 0x7fffff);
                break;
            case DType::bf16:
                bits = 0x7f80 | sign << 15 | (random_() % 2 == 0 ? 0 : random_() & 0x7f);
                break;
            case DType::f16:
                bits = 0x7c00 | sign << 15 | (random_() % 2 == 0 ? 0 : random_() & 0x3ff);
                break;
            case DType::f8_e4m3:
                bits = 0x7f | sign << 7;
                break;
            default:
                return;
        }
        std::memcpy(tensor.bytes.data() + at, &bits, width);
        const TemporaryFolder folder;
        model.write(folder.path());
        open(folder.path(), Expected::refusal_when_read);
    }

    // What a tool says of its folder beside the config.
    void account() {
        const TemporaryFolder folder;
        models_.back().write(folder.path());
        const fs::path file = folder.path() / "quantization_config.json";
        const std::string good = *read_text_file(file, 1u << 30);
        check(write_text_file(file, bytes_changed(good, good.size())));
        open(folder.path(), Expected::anything);
    }

    void tokenizer_file() {
        const auto parsed = Tokenizer::parse(bytes_changed(tokenizer_, tokenizer_.size()));
        if (!parsed.ok()) {
            ++refused_[kind_now()];
            if (parsed.error().message().empty()) fail("an error without a sentence");
            return;
        }
        const std::string text = "Hello, 12 wörld <|user|> \xff\xfe";
        const auto ids = parsed->encode(text);
        for (const TokenId id : ids) {
            parsed->bytes_of(id);
        }
    }

    // ---- what must hold

    void open(const fs::path& folder, Expected expected) {
        auto opened = Checkpoint::open(folder);
        if (!opened.ok()) {
            ++refused_[kind_now()];
            const std::string& message = opened.error().message();
            if (!message.starts_with(folder.string() + "/") &&
                !message.starts_with(folder.string() + ": tensor ")) {
                fail("names neither file nor tensor: " + message);
            }
            return;
        }
        if (expected == Expected::refusal) fail("was opened");
        ++opened_;
        Checkpoint& checkpoint = **opened;
        const model::ModelConfig& config = checkpoint.config();
        ops::CpuBackendOptions one;
        one.threads = 1;
        const auto backend = ops::make_cpu_backend(one).value();
        model::NetworkOptions options;
        options.max_rows = 64;
        options.max_logit_rows = 4;
        // Sizes that no tensor holds to, like the tokens a query selects, may ask for any memory.
        constexpr Bytes most = Bytes{256} << 20;
        if (model::Network::memory(config, *backend, options).total() > most) {
            if (expected == Expected::refusal_when_read) fail("needs much memory");
            return;
        }
        if (random_() % 4 == 0) checkpoint.use_input_scales();
        const auto network = model::Network::load(config, checkpoint, *backend, options);
        if (!network.ok()) {
            if (network.error().message().empty()) fail("an error without a sentence");
            if (expected == Expected::refusal_when_read) ++refused_[kind_now()];
            return;
        }
        if (expected == Expected::refusal_when_read) fail("was loaded");
        HostCacheOptions cache_options;
        cache_options.pages = 1;
        cache_options.slots = 1;
        cache_options.ring = static_cast<std::uint32_t>(std::max<std::size_t>(config.kda_conv, 4));
        const HostCaches caches(config, cache_options);
        SequenceRunner runner(**network, caches.views(), RequestSlot(0), {PageId(0)});
        const std::vector<TokenId> ids = {TokenId(1), TokenId(0), TokenId(2)};
        const auto logits = runner.prefill(ids, 64);
        if (!logits.ok() && logits.error().message().empty()) fail("an error without a sentence");
        ++ran_;
    }

    std::mt19937_64 random_;
    std::vector<SmallModel> models_;
    std::string tokenizer_;
    std::map<std::string, std::size_t> counts_, refused_;
    std::size_t opened_ = 0;
    std::size_t ran_ = 0;
};

const std::vector<Trials::Kind> Trials::kinds = {
    {"bytes of a header", &Trials::header_bytes},
    {"bytes of a header", &Trials::header_bytes},
    {"length of a file", &Trials::length_of_a_file},
    {"length of a header", &Trials::length_of_the_header},
    {"type of a tensor", &Trials::type_of_a_tensor},
    {"shape of a tensor", &Trials::shape_of_a_tensor},
    {"name of a tensor", &Trials::name_of_a_tensor},
    {"index", &Trials::index_file},
    {"bytes of a config", &Trials::config_bytes},
    {"value of a config", &Trials::config_value},
    {"value of a config", &Trials::config_value},
    {"a number that is none", &Trials::number_that_is_none},
    {"bytes of an account", &Trials::account},
    {"bytes of a tokenizer", &Trials::tokenizer_file},
};

}  // namespace
}  // namespace percheron::tests

int main(int count, char** values) {
    std::uint64_t trials = 10000;
    std::uint64_t seed = 1;
    if (count > 3 ||
        (count > 1 && !percheron::tests::read_whole(values[1], std::uint64_t{1}, trials)) ||
        (count > 2 && !percheron::tests::read_whole(values[2], std::uint64_t{0}, seed))) {
        std::fprintf(stderr, "usage: checkpoint_mutations [COUNT, from 1] [SEED]\n");
        return 2;
    }
    for (const int number : {SIGPROF, SIGSEGV, SIGABRT, SIGFPE, SIGBUS, SIGILL}) {
        std::signal(number, percheron::tests::report_signal);
    }
    percheron::tests::Trials all(seed);
    for (std::uint64_t trial = 0; trial < trials; ++trial) {
        // Computing, not waiting: a trial holds no lock, and a busy machine is no fault of its own.
        const itimerval limit{{0, 0}, {30, 0}};
        setitimer(ITIMER_PROF, &limit, nullptr);
        all.run(trial);
    }
    std::printf(
        "%llu mutations of checkpoints, seed %llu: none crashed, hung or was opened wrongly\n",
        static_cast<unsigned long long>(trials), static_cast<unsigned long long>(seed));
    all.print();
}
