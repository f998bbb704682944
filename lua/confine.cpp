#include "lua/confine.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>

#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/base/error.h"
#include "core/io/files.h"

namespace het::lua {
namespace {

// --- Landlock (Documentation/userspace-api/landlock.rst of the kernel). Declared here: the headers of a
// distribution are older than the kernels that programs meet.

struct RulesetAttributes {
  uint64_t files = 0, network = 0, scoped = 0;
};
struct [[gnu::packed]] PathRule {
  uint64_t allowed;
  int32_t folder;
};
constexpr int kRulePathBeneath = 1;
constexpr uint32_t kAskVersion = 1;

constexpr uint64_t kExecute = 1 << 0, kWriteFile = 1 << 1, kReadFile = 1 << 2, kReadFolder = 1 << 3;
constexpr uint64_t kTruncate = 1 << 14, kDeviceControl = 1 << 15;
constexpr uint64_t kRead = kReadFile | kReadFolder;
// Rights of each version of the interface: its last file right, and what came with it.
constexpr uint64_t rights_of(int version) {
  const int last = version >= 5 ? 15 : version >= 3 ? 14 : version == 2 ? 13 : 12;
  return (uint64_t{2} << last) - 1;
}
// Rights that a rule on a file may name.
constexpr uint64_t kOfFiles = kExecute | kWriteFile | kReadFile | kTruncate | kDeviceControl;
constexpr uint64_t kAllTcp = 3;     // bind and connect; from version 4 on
constexpr uint64_t kAllScoped = 3;  // abstract sockets and signals; from version 6 on

int landlock_version() {
  const long version = syscall(SYS_landlock_create_ruleset, nullptr, 0, kAskVersion);
  return version < 0 ? 0 : static_cast<int>(version);
}

void allow(int ruleset, const std::string& path, uint64_t rights) {
  const Descriptor opened(::open(path.c_str(), O_PATH | O_CLOEXEC));
  if (opened.number() < 0) return;  // not there: nothing to allow
  const Descriptor folder(::open(path.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  const PathRule rule{folder.number() < 0 ? rights & kOfFiles : rights, opened.number()};
  if (syscall(SYS_landlock_add_rule, ruleset, kRulePathBeneath, &rule, 0) != 0)
    fail_environment("the kernel's Landlock refuses a rule for {}: {}", path, std::strerror(errno));
}

void enforce_landlock(const Confinement& wanted) {
  const int version = landlock_version();
  if (version == 0) return;
  const uint64_t all = rights_of(version);
  RulesetAttributes attributes;
  attributes.files = all;
  if (version >= 4 && !wanted.network) attributes.network = kAllTcp;
  if (version >= 6 && !wanted.gpu) attributes.scoped = kAllScoped;
  const size_t known = version >= 6 ? sizeof attributes : version >= 4 ? 16 : 8;
  const Descriptor ruleset(static_cast<int>(syscall(SYS_landlock_create_ruleset, &attributes, known, 0)));
  if (ruleset.number() < 0)
    fail_environment("the kernel's Landlock refuses its rules: {}", std::strerror(errno));
  const uint64_t everything = all & ~kExecute;
  // What programs and libraries of the system are made of, and what the machine says of itself.
  for (const char* path : {"/usr", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/localtime", "/sys",
                           "/proc/meminfo", "/proc/cpuinfo", "/proc/stat", "/proc/self/cgroup",
                           "/proc/self/status", "/dev/urandom", "/dev/random", "/dev/zero"})
    allow(ruleset.number(), path, kRead & all);
  for (const char* path : {"/dev/null", "/dev/tty"})
    allow(ruleset.number(), path, (kReadFile | kWriteFile | kDeviceControl) & all);
  if (wanted.network)
    for (const char* path : {"/etc/hosts", "/etc/host.conf", "/etc/resolv.conf", "/etc/nsswitch.conf",
                             "/etc/services", "/etc/gai.conf", "/etc/ssl/certs", "/proc/sys/net"})
      allow(ruleset.number(), path, kRead & all);
  if (wanted.gpu) {
    for (const char* path : {"/proc", "/opt", "/etc/nccl.conf", "/etc/nvidia", "/etc/libibverbs.d"})
      allow(ruleset.number(), path, kRead & all);
    for (const char* path : {"/dev", "/dev/shm", "/tmp"}) allow(ruleset.number(), path, everything);
  }
  for (const std::string& path : wanted.reads) allow(ruleset.number(), path, kRead & all);
  for (const std::string& path : wanted.writes) allow(ruleset.number(), path, everything);
  if (syscall(SYS_landlock_restrict_self, ruleset.number(), 0) != 0)
    fail_environment("the kernel's Landlock does not take effect: {}", std::strerror(errno));
}

// --- seccomp

class Filter {
 public:
  Filter() {
    load(offsetof(seccomp_data, arch));
    // Another instruction set's system calls have other numbers.
    add(BPF_JMP | BPF_JEQ | BPF_K, AUDIT_ARCH_X86_64, 1, 0);
    add(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
    load(offsetof(seccomp_data, nr));
    add(BPF_JMP | BPF_JGE | BPF_K, 0x40000000, 0, 1);  // x32
    refuse(ENOSYS);
  }
  void refuse_call(long number, int error = EPERM) {
    add(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(number), 0, 1);
    refuse(error);
  }
  // What a later kernel adds is not known here.
  void refuse_from(long number) {
    add(BPF_JMP | BPF_JGE | BPF_K, static_cast<uint32_t>(number), 0, 1);
    refuse(ENOSYS);
  }
  // A call whose argument, of the bits in `mask`, is not among `values`.
  void refuse_but(long call, size_t argument, const std::vector<uint32_t>& values, int error = EPERM,
                  uint32_t mask = ~0U) {
    check(call, argument, values, error, mask, false);
  }
  // A call whose argument is among `values`.
  void refuse_with(long call, size_t argument, const std::vector<uint32_t>& values) {
    check(call, argument, values, EPERM, ~0U, true);
  }
  // Threads are started, processes are not.
  void refuse_processes() {
    refuse_call(SYS_fork);
    refuse_call(SYS_vfork);
    refuse_call(SYS_clone3, ENOSYS);  // its flags lie in memory; libraries then take clone
    add(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 0, 4);
    load(offsetof(seccomp_data, args[0]));
    add(BPF_JMP | BPF_JSET | BPF_K, CLONE_THREAD, 1, 0);
    refuse(EPERM);
    load(offsetof(seccomp_data, nr));
  }
  void install() {
    add(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    sock_fprog program{static_cast<unsigned short>(code_.size()), code_.data()};
    if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) != 0)
      fail_environment("the kernel's seccomp refuses its filter: {}", std::strerror(errno));
  }

 private:
  void add(int code, uint32_t value, uint8_t if_true = 0, uint8_t if_false = 0) {
    code_.push_back({static_cast<uint16_t>(code), if_true, if_false, value});
  }
  void check(long call, size_t argument, const std::vector<uint32_t>& values, int error, uint32_t mask,
             bool refused) {
    const auto count = static_cast<uint8_t>(values.size());
    const uint8_t masks = mask == ~0U ? 0 : 1;
    // Past this check: loading the argument, its mask, the comparisons, the refusal, loading the number
    // again.
    add(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(call), 0,
        static_cast<uint8_t>(count + masks + 3 + refused));
    load(offsetof(seccomp_data, args) + argument * sizeof(seccomp_data::args[0]));
    if (masks != 0) add(BPF_ALU | BPF_AND | BPF_K, mask);
    // A value that is found leaves the comparisons: for the refusal, or past it.
    for (uint8_t i = 0; i < count; ++i)
      add(BPF_JMP | BPF_JEQ | BPF_K, values[i], static_cast<uint8_t>(count - i), 0);
    if (refused) add(BPF_JMP | BPF_JA, 1);
    refuse(error);
    load(offsetof(seccomp_data, nr));
  }
  void load(size_t offset) { add(BPF_LD | BPF_W | BPF_ABS, static_cast<uint32_t>(offset)); }
  void refuse(int error) { add(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<uint32_t>(error)); }

  std::vector<sock_filter> code_;
};

constexpr int kFirstUnknown = 451;  // later calls than those of Linux 5.19 (fchmodat2, setxattrat, ...)
constexpr std::array kRefused{
    // other programs and other processes
    SYS_execve, SYS_execveat, SYS_ptrace, SYS_process_vm_readv, SYS_process_vm_writev, SYS_kcmp,
    SYS_pidfd_send_signal, SYS_process_madvise, SYS_process_mrelease, SYS_kill, SYS_tkill,
    SYS_rt_sigqueueinfo, SYS_setpriority, SYS_ioprio_set, SYS_sched_setparam, SYS_sched_setattr, SYS_shmget,
    SYS_shmat, SYS_shmctl, SYS_msgget, SYS_msgsnd, SYS_msgrcv, SYS_msgctl, SYS_semget, SYS_semop,
    SYS_semtimedop, SYS_semctl, SYS_mq_open, SYS_mq_unlink,
    // what files and devices are called, and what is kept of them
    SYS_mount, SYS_umount2, SYS_pivot_root, SYS_chroot, SYS_open_by_handle_at, SYS_name_to_handle_at,
    SYS_fsopen, SYS_fsmount, SYS_fsconfig, SYS_fspick, SYS_move_mount, SYS_open_tree, SYS_mount_setattr,
    SYS_swapon, SYS_swapoff, SYS_quotactl, SYS_quotactl_fd, SYS_acct, SYS_fanotify_init, SYS_inotify_init,
    SYS_inotify_init1, SYS_mknod, SYS_mknodat, SYS_symlink, SYS_symlinkat, SYS_link, SYS_linkat, SYS_truncate,
    SYS_chmod, SYS_fchmodat, SYS_chown, SYS_fchown, SYS_lchown, SYS_fchownat, SYS_getxattr, SYS_lgetxattr,
    SYS_fgetxattr, SYS_listxattr, SYS_llistxattr, SYS_flistxattr, SYS_setxattr, SYS_lsetxattr, SYS_fsetxattr,
    SYS_removexattr, SYS_lremovexattr, SYS_fremovexattr, SYS_utime, SYS_utimes, SYS_utimensat, SYS_futimesat,
    // the kernel and who one is
    SYS_init_module, SYS_finit_module, SYS_delete_module, SYS_kexec_load, SYS_kexec_file_load, SYS_bpf,
    SYS_reboot, SYS_perf_event_open, SYS_userfaultfd, SYS_io_uring_setup, SYS_io_uring_enter,
    SYS_io_uring_register, SYS_add_key, SYS_request_key, SYS_keyctl, SYS_setns, SYS_unshare, SYS_setuid,
    SYS_setgid, SYS_setreuid, SYS_setregid, SYS_setresuid, SYS_setresgid, SYS_setgroups, SYS_capset,
    SYS_personality, SYS_settimeofday, SYS_clock_settime, SYS_clock_adjtime, SYS_adjtimex, SYS_sethostname,
    SYS_setdomainname, SYS_iopl, SYS_ioperm, SYS_syslog, SYS_vhangup};

// GPU drivers share memory between processes by these.
constexpr std::array kRefusedWithoutGpu{SYS_pidfd_open, SYS_pidfd_getfd, SYS_fchmod, SYS_sched_setaffinity};

void enforce_seccomp(const Confinement& wanted) {
  Filter filter;
  for (const long call : kRefused) filter.refuse_call(call);
  if (!wanted.gpu)
    for (const long call : kRefusedWithoutGpu) filter.refuse_call(call);
  filter.refuse_from(kFirstUnknown);
  // Pairs of sockets that keep their connection: of datagram sockets each can send to any address.
  filter.refuse_but(SYS_socketpair, 1, {SOCK_STREAM}, EPERM,
                    ~static_cast<uint32_t>(SOCK_CLOEXEC | SOCK_NONBLOCK));
  // A thread signals threads of this process, as abort() does, and bounds that process.
  for (const long call : {SYS_tgkill, SYS_rt_tgsigqueueinfo, SYS_prlimit64})
    filter.refuse_but(call, 0, {0, static_cast<uint32_t>(getpid())});
  // A thread gives way to all others.
  filter.refuse_but(SYS_sched_setscheduler, 0, {0});
  filter.refuse_but(SYS_sched_setscheduler, 1, {SCHED_IDLE});
  filter.refuse_processes();
  // Requests to a terminal that type for its user, or choose what the user pastes.
  filter.refuse_with(SYS_ioctl, 1, {TIOCSTI, TIOCLINUX});
  // Files that send a signal of choice to a process of choice when data comes.
  filter.refuse_with(SYS_fcntl, 1, {F_SETOWN, F_SETSIG, F_SETOWN_EX});
  std::vector<uint32_t> families;
  if (wanted.network) families = {AF_INET, AF_INET6, AF_NETLINK};
  if (wanted.gpu) families.push_back(AF_UNIX);
  filter.refuse_but(SYS_socket, 0, families, EACCES);
  filter.install();
}

bool has_seccomp() {
  const uint32_t action = SECCOMP_RET_ERRNO;
  return syscall(SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, &action) == 0;
}

}  // namespace

KernelWalls kernel_walls() { return {landlock_version(), has_seccomp(), has_openat2()}; }

void confine(const Confinement& wanted) {
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
    fail_environment("the kernel does not let this process give up rights: {}", std::strerror(errno));
  enforce_landlock(wanted);
  if (has_seccomp()) enforce_seccomp(wanted);
}

void limit_memory([[maybe_unused]] int64_t bytes) {
#ifdef __SANITIZE_ADDRESS__
  return;
#endif
  rlimit limit{};
  getrlimit(RLIMIT_DATA, &limit);
  limit.rlim_cur = std::min(static_cast<rlim_t>(bytes), limit.rlim_max);
  limit.rlim_max = limit.rlim_cur;
  if (setrlimit(RLIMIT_DATA, &limit) != 0)
    fail_environment("cannot limit the memory of this process: {}", std::strerror(errno));
}

}  // namespace het::lua
