#include "cache/disk_tier.h"

#include <algorithm>
#include <string>
#include <utility>

#include "core/logging.h"

namespace percheron::cache {
namespace {

constexpr std::size_t most_pages_together = 256;

// Its key in both threads' tables and in its file's entry.
constexpr Bytes bytes_a_block = 256;

std::int64_t now() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

}  // namespace

Bytes DiskTier::memory(const DiskTierOptions& options, Bytes page_bytes, Bytes state_bytes) {
    return options.queue_bytes + 2 * std::max(piece_bytes, state_bytes) +
           options.folder.limit / page_bytes * bytes_a_block;
}

Result<std::unique_ptr<DiskTier>> DiskTier::open(DiskTierOptions options) {
    PERCHERON_ASSIGN(auto folder, TierFolder::open(options.folder));
    return std::unique_ptr<DiskTier>(new DiskTier(std::move(options), std::move(folder)));
}

DiskTier::DiskTier(DiskTierOptions options, std::unique_ptr<TierFolder> folder)
    : options_(std::move(options)), folder_(std::move(folder)) {
    for (const BlockKey& key : folder_->blocks())
        blocks_.insert(key);
    for (const BlockKey& key : folder_->states())
        states_.insert(key);
    publish();
}

DiskTier::~DiskTier() {
    stopping_.store(true);
    rouse();
    if (thread_.joinable()) thread_.join();
}

void DiskTier::start(std::function<void()> wake) {
    wake_ = std::move(wake);
    thread_ = std::thread([this] { run(); });
}

BlockKeys DiskTier::keys_of(std::string_view salt) const {
    return BlockKeys(root_key(options_.folder.identity, salt));
}

PrefixDiskStatus DiskTier::status() const {
    PrefixDiskStatus status;
    status.on = true;
    status.paused = paused_.load(relaxed);
    status.entries = entries_.load(relaxed);
    status.bytes = bytes_.load(relaxed);
    status.limit_bytes = options_.folder.limit;
    status.queued_bytes = queued_bytes_.load(std::memory_order_acquire);
    status.bytes_written = bytes_written_.load(relaxed);
    status.bytes_restored = bytes_restored_.load(relaxed);
    status.restores = restores_.load(relaxed);
    status.evictions = evictions_.load(relaxed);
    status.refused = refused_.load(relaxed);
    status.dropped = dropped_.load(relaxed);
    return status;
}

// ---- the engine thread

bool DiskTier::offer(Write write, Bytes bytes, const Fill& fill) {
    if (paused_.load(relaxed) && now() < retry_at_.load(relaxed)) return false;
    if (queued_bytes_.load(std::memory_order_acquire) + bytes > options_.queue_bytes) return false;
    const bool page = write.kind == TierFile::Kind::pages;
    const BlockKey key = write.key;
    write.bytes.resize(bytes);
    fill(write.bytes);
    queued_bytes_.fetch_add(bytes);
    if (!writes_.push(std::move(write))) {
        queued_bytes_.fetch_sub(bytes);
        return false;
    }
    (page ? blocks_ : states_).insert(key);
    rouse();
    return true;
}

bool DiskTier::offer_page(const BlockKey& before, bool root, const BlockKey& key,
                          const Fill& fill) {
    return offer({TierFile::Kind::pages, {}, root, before, key, {}}, options_.folder.page_bytes,
                 fill);
}

bool DiskTier::offer_state(const BlockKey& key, CheckpointKind kind, const Fill& fill) {
    return offer({TierFile::Kind::state, kind, false, key, key, {}}, options_.folder.state_bytes,
                 fill);
}

bool DiskTier::ask(std::vector<BlockKey> blocks, const BlockKey& state) {
    wanted_.store(++asked_);
    const bool pushed = questions_.push({asked_, std::move(blocks), state});
    rouse();
    return pushed;
}

void DiskTier::give_up() {
    wanted_.store(0);
    rouse();
}

std::optional<DiskTier::Piece> DiskTier::next() {
    while (std::optional<News> news = news_.pop()) {
        rouse();  // there is room for another
        for (const TierFolder::Lost& lost : news->lost) {
            (lost.kind == TierFile::Kind::pages ? blocks_ : states_).erase(lost.key);
        }
        if (news->piece && news->piece->asked == wanted_.load(relaxed)) {
            return std::move(news->piece);
        }
    }
    return std::nullopt;
}

void DiskTier::rouse() {
    signal_.fetch_add(1);
    signal_.notify_one();
}

// ---- the tier's thread

void DiskTier::run() {
    for (;;) {
        const std::uint32_t seen = signal_.load();
        if (const std::optional<Question> question = questions_.pop()) {
            answer(*question);
        } else if (writes_.front() != nullptr) {
            write_some();
        } else if (stopping_.load()) {
            return;
        } else {
            signal_.wait(seen);
        }
    }
}

// False: it is not wanted any more.  Waits until the engine has taken what came before.
bool DiskTier::send(Piece piece) {
    News news{std::move(piece), {}};
    for (;;) {
        const std::uint32_t seen = signal_.load();
        if (stopping_.load() || wanted_.load() != news.piece->asked) return false;
        if (news_.empty()) break;  // no more than one piece beside the one in hand
        signal_.wait(seen);
    }
    if (!news_.push(std::move(news))) return false;
    wake_();
    return true;
}

void DiskTier::answer(const Question& question) {
    if (send_pages(question)) send_state(question);
    publish();
}

bool DiskTier::send_pages(const Question& question) {
    const Bytes page = options_.folder.page_bytes;
    const std::size_t most = std::max<std::size_t>(1, piece_bytes / page);
    std::span<const BlockKey> left = question.blocks;
    while (!left.empty()) {
        Piece piece;
        piece.asked = question.number;
        const std::size_t count = std::max<std::size_t>(1, folder_->together(left, most));
        piece.bytes.resize(count * page);
        piece.pages = static_cast<std::uint32_t>(count);
        piece.failed = !folder_->read_pages(left.first(count), piece.bytes).ok();
        const bool failed = piece.failed;
        // Before the engine goes on and offers what it computes.
        report_lost(folder_->take_lost());
        if (!send(std::move(piece)) || failed) return false;
        left = left.subspan(count);
    }
    return true;
}

void DiskTier::send_state(const Question& question) {
    Piece piece;
    piece.asked = question.number;
    piece.bytes.resize(options_.folder.state_bytes);
    const Result<CheckpointKind> kind = folder_->read_state(question.state, piece.bytes);
    piece.failed = !kind.ok();
    if (kind.ok()) piece.kind = *kind;
    report_lost(folder_->take_lost());
    if (send(std::move(piece))) folder_->touch(question.state);
}

// One file: a state, or as many pages as follow each other.
void DiskTier::write_some() {
    std::vector<Write> items;
    Bytes bytes = 0;
    do {
        items.push_back(*writes_.pop());
        bytes += items.back().bytes.size();
        const Write* const next = writes_.front();
        const bool follows = next != nullptr && next->kind == TierFile::Kind::pages &&
                             items.back().kind == TierFile::Kind::pages &&
                             next->before == items.back().key;
        if (!follows) break;
    } while (bytes < piece_bytes && items.size() < most_pages_together);

    std::vector<BlockKey> keys;
    std::vector<std::span<const std::byte>> pieces;
    for (const Write& item : items) {
        keys.push_back(item.key);
        pieces.emplace_back(item.bytes);
    }
    if (items.front().kind == TierFile::Kind::pages) {
        after_write(folder_->write_pages(items.front().before, items.front().root, keys, pieces),
                    items, bytes);
    } else {
        after_write(folder_->write_state(keys.front(), items.front().checkpoint, pieces.front()),
                    items, bytes);
    }
    report_lost(folder_->take_lost());
    publish();
    queued_bytes_.fetch_sub(bytes);
}

void DiskTier::after_write(const Result<bool>& written, std::span<const Write> items, Bytes bytes) {
    if (written.ok() && *written) {
        bytes_written_.fetch_add(bytes, relaxed);
        if (paused_.exchange(false)) log_info("--prefix-disk: files are written again");
        return;
    }
    std::vector<TierFolder::Lost> lost;
    for (const Write& item : items)
        lost.push_back({item.kind, item.key});
    count_dropped(lost.size());
    if (!written.ok()) {
        retry_at_.store(
            now() + std::chrono::duration_cast<std::chrono::nanoseconds>(options_.retry).count());
        if (!paused_.exchange(true)) {
            log_warning("--prefix-disk: " + written.error().message() +
                        "; nothing is written for a while, what is there is still read");
        }
    }
    report_lost(std::move(lost));
}

// The engine hears of it before it asks for it again; whoever asks too early finds nothing.
void DiskTier::report_lost(std::vector<TierFolder::Lost> lost) {
    if (lost.empty()) return;
    News news{std::nullopt, std::move(lost)};
    for (;;) {
        const std::uint32_t seen = signal_.load();
        if (stopping_.load()) return;
        if (news_.push(std::move(news))) break;
        signal_.wait(seen);
    }
    wake_();
}

void DiskTier::publish() {
    entries_.store(folder_->entries(), relaxed);
    bytes_.store(folder_->bytes(), relaxed);
    evictions_.store(folder_->evictions(), relaxed);
    refused_.store(folder_->refused(), relaxed);
}

}  // namespace percheron::cache
