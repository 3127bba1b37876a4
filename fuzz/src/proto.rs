//! Every message of the contract: the first byte chooses one ([`mark`]). What is read is written in one form,
//! which reads back; hostile bytes buy no more memory than the limits say.
use bcd::proto::{self, Limits, Message};

pub const HEAP: super::Heap = super::Heap {
    base: 4096,
    per_byte: 1024,
};

macro_rules! messages {
    ($($name:ident)*) => {
        /// Every message, by name.
        pub const MESSAGES: &[(&str, fn(&[u8]))] = &[$((stringify!($name), one::<proto::$name>)),*];
    };
}

messages! {
    Ack
    AnyReceipt
    BootEntry
    BootedFrom
    CancelCommand
    Command
    CommandProgress
    CommandUpdate
    Cpu
    DaemonSection
    DeployImageParams
    DeployImageResult
    DeployReceipt
    DeployedPartition
    DeviceLog
    DiagDcgmParams
    DiagDisksParams
    DiagFinding
    DiagMemoryParams
    DiagNetworkParams
    DiagReading
    DiagReport
    DiagResult
    DiscoveryAssertion
    Disk
    DiskTarget
    DisksWipeParams
    DisksWipeResult
    Drain
    Envelope
    Event
    EventsDropped
    Facts
    FileSource
    Firmware
    GatewayFrame
    Gpu
    HardwareClaims
    Heartbeat
    Hello
    IdentityRenewed
    JoinDeferral
    JoinRequest
    JoinResponse
    JoinResult
    JournalDamaged
    JournalctlSource
    Kernel
    LogSection
    LogsCollectParams
    LogsCollectResult
    MachineBootParams
    MachineBootResult
    NetworkInterface
    NodeFrame
    NodeSpec
    Order
    OrderAnswer
    OrderClaim
    OsFiles
    OutputChunk
    OutputRequest
    ProvisionedProof
    RebootParams
    RebootResult
    ReceiptHead
    RenewNow
    RenewRequest
    Renewal
    RootFilesystem
    RootPart
    SealedToken
    SectionStatus
    ServerTime
    Signature
    SignedReceipt
    SpecSection
    StorageFault
    TrustBundle
    TrustBundleTaken
    Welcome
    WipeAttempt
    WipeReceipt
    WipeSample
    WipedDisk
    WrittenFile
}

pub fn run(data: &[u8]) {
    if let Some((first, rest)) = data.split_first() {
        for (_, decode) in MESSAGES.iter().filter(|(name, _)| mark(name) == *first) {
            decode(rest);
        }
    }
}

/// The first byte that chooses a message: made of its name, so that a seed keeps its meaning when
/// messages are added.
pub fn mark(name: &str) -> u8 {
    name.bytes()
        .fold(7, |mark: u8, byte| mark.wrapping_mul(31).wrapping_add(byte))
}

fn one<M: Message>(bytes: &[u8]) {
    match M::decode(bytes) {
        Ok(message) => {
            let written = message.encode_to_vec();
            assert_eq!(message.encoded_len(), written.len());
            let again = M::decode_within(&written, Limits::of_size(written.len().max(1 << 20)))
                .expect("what is written reads back");
            assert!(again == message, "{} changed on the way", M::NAME);
            assert_eq!(
                again.encode_to_vec(),
                written,
                "two forms of one {}",
                M::NAME
            );
        }
        Err(error) => assert_eq!(error.message, M::NAME),
    }
}
