//! OpenFlow errors, their names, and their numbers in each version.
//!
//! One table has all of them. Versions number errors differently. An error that 1.0 to 1.3 lack has
//! a number of Nicira's or ONF's, as Open vSwitch sends it; one that has no number at all in a
//! version is sent as [`Error::Unencodable`].

use crate::model::message::{ErrorKind, ErrorMessage};
use crate::model::version::Version;

/// Experimenter id of Nicira.
pub(crate) const NICIRA: u32 = 0x0000_2320;
/// Experimenter id of the Open Networking Foundation.
pub(crate) const ONF: u32 = 0x4f4e_4600;

/// `NXET_VENDOR`: the type under which 1.0 and 1.1 carry Nicira's own errors.
pub(crate) const NICIRA_ERROR_TYPE: u16 = 0xb0c2;
/// `OFPET_EXPERIMENTER` (1.2 and later).
pub(crate) const EXPERIMENTER_TYPE: u16 = 0xffff;

/// The number of an error in a range of versions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Number {
    since: u8,
    until: u8,
    wire: WireError,
}

/// An error's numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WireError {
    /// Type and code of the specification.
    Standard {
        /// `OFPET_*`.
        kind: u16,
        /// The code.
        code: u16,
    },
    /// Nicira's envelope for 1.0 and 1.1, with type and code inside.
    Nicira {
        /// Type inside the envelope.
        kind: u16,
        /// Code inside the envelope.
        code: u16,
    },
    /// An experimenter's error (1.2 and later).
    Experimenter {
        /// The experimenter's id.
        experimenter: u32,
        /// `exp_type`.
        code: u16,
    },
}

const fn of(since: u8, until: u8, kind: u16, code: u16) -> Number {
    let wire = WireError::Standard { kind, code };
    Number { since, until, wire }
}

const fn nx(since: u8, until: u8, kind: u16, code: u16) -> Number {
    let wire = WireError::Nicira { kind, code };
    Number { since, until, wire }
}

const fn exp(since: u8, until: u8, code: u16) -> Number {
    let experimenter = NICIRA;
    let wire = WireError::Experimenter { experimenter, code };
    Number { since, until, wire }
}

const fn onf(since: u8, until: u8, code: u16) -> Number {
    let experimenter = ONF;
    let wire = WireError::Experimenter { experimenter, code };
    Number { since, until, wire }
}

macro_rules! errors {
    ($($variant:ident $name:literal: $($number:expr),+;)*) => {
        /// An error to report to the peer. The codec chooses its numbers by the connection's
        /// version.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[allow(missing_docs)] // the names are the specification's: type, then code
        pub enum Error {
            $($variant,)*
        }

        impl Error {
            /// Every error.
            pub const ALL: &'static [Error] = &[$(Error::$variant,)*];

            /// Returns its name in the specification or in Open vSwitch.
            pub fn name(self) -> &'static str {
                match self {
                    $(Error::$variant => $name,)*
                }
            }
        }

        /// Numbers in the order of [`Error`].
        static NUMBERS: &[&[Number]] = &[$(&[$($number),+],)*];
    };
}

// Arguments: first and last version that has the number, then type and code: `of` those of the
// specification, `nx` those in Nicira's envelope, `exp` Nicira's and `onf` ONF's experimenter code.
errors! {
    HelloIncompatible "OFPHFC_INCOMPATIBLE": of(1, 6, 0, 0);
    HelloPermission "OFPHFC_EPERM": of(1, 6, 0, 1);
    BadVersion "OFPBRC_BAD_VERSION": of(1, 6, 1, 0);
    BadType "OFPBRC_BAD_TYPE": of(1, 6, 1, 1);
    BadMultipart "OFPBRC_BAD_STAT": of(1, 6, 1, 2);
    BadExperimenter "OFPBRC_BAD_VENDOR": of(1, 6, 1, 3);
    BadExperimenterType "OFPBRC_BAD_SUBTYPE": of(1, 6, 1, 4);
    Permission "OFPBRC_EPERM": of(1, 6, 1, 5);
    BadLength "OFPBRC_BAD_LEN": of(1, 6, 1, 6);
    BufferEmpty "OFPBRC_BUFFER_EMPTY": of(1, 6, 1, 7);
    BufferUnknown "OFPBRC_BUFFER_UNKNOWN": of(1, 6, 1, 8);
    BadRequestTableId "OFPBRC_BAD_TABLE_ID": nx(1, 1, 1, 512), of(2, 6, 1, 9);
    IsSlave "OFPBRC_IS_SECONDARY": of(1, 2, 1, 5), of(3, 6, 1, 10);
    BadRequestPort "OFPBRC_BAD_PORT": nx(1, 2, 1, 514), of(3, 6, 1, 11);
    BadPacket "OFPBRC_BAD_PACKET": of(3, 6, 1, 12);
    MultipartOverflow "OFPBRC_MULTIPART_BUFFER_OVERFLOW": of(4, 6, 1, 13);
    MultipartRequestTimeout "OFPBRC_MULTIPART_REQUEST_TIMEOUT": of(5, 6, 1, 14);
    PipelineFieldsOnly "OFPBRC_PIPELINE_FIELDS_ONLY": of(6, 6, 1, 17);
    NxmInvalid "NXBRC_NXM_INVALID": nx(1, 2, 1, 256), exp(3, 6, 2);
    NxmBadType "NXBRC_NXM_BAD_TYPE": nx(1, 2, 1, 257), exp(3, 6, 3);
    MustBeZero "NXBRC_MUST_BE_ZERO": nx(1, 2, 1, 515), exp(3, 6, 4);
    BadReason "NXBRC_BAD_REASON": nx(1, 2, 1, 516), exp(3, 6, 5);
    Unencodable "NXBRC_UNENCODABLE_ERROR": nx(1, 2, 1, 521), exp(3, 6, 10);
    BadActionType "OFPBAC_BAD_TYPE": of(1, 6, 2, 0);
    BadActionLength "OFPBAC_BAD_LEN": of(1, 6, 2, 1);
    BadActionExperimenter "OFPBAC_BAD_VENDOR": of(1, 6, 2, 2);
    BadActionExperimenterType "OFPBAC_BAD_VENDOR_TYPE": of(1, 6, 2, 3);
    BadOutPort "OFPBAC_BAD_OUT_PORT": of(1, 6, 2, 4);
    BadActionArgument "OFPBAC_BAD_ARGUMENT": of(1, 6, 2, 5);
    ActionPermission "OFPBAC_EPERM": of(1, 6, 2, 6);
    TooManyActions "OFPBAC_TOO_MANY": of(1, 6, 2, 7);
    BadQueue "OFPBAC_BAD_QUEUE": of(1, 6, 2, 8);
    BadOutGroup "OFPBAC_BAD_OUT_GROUP": nx(1, 1, 2, 9), of(2, 6, 2, 9);
    ActionMatchInconsistent "OFPBAC_MATCH_INCONSISTENT": nx(1, 1, 1, 522), of(2, 6, 2, 10);
    FlowModUnsupported "OFPFMFC_UNSUPPORTED": of(1, 1, 3, 5);
    UnsupportedOrder "OFPBAC_UNSUPPORTED_ORDER": of(2, 6, 2, 11);
    BadTag "OFPBAC_BAD_TAG": of(2, 6, 2, 12);
    BadSetType "OFPBAC_BAD_SET_TYPE": nx(1, 2, 1, 523), of(3, 6, 2, 13);
    BadSetLength "OFPBAC_BAD_SET_LEN": nx(1, 2, 1, 524), of(3, 6, 2, 14);
    BadSetArgument "OFPBAC_BAD_SET_ARGUMENT": nx(1, 2, 1, 525), of(3, 6, 2, 15);
    BadSetMask "OFPBAC_BAD_SET_MASK": onf(4, 5, 4250), of(6, 6, 2, 16);
    ActionMustBeZero "NXBAC_MUST_BE_ZERO": nx(1, 2, 2, 256), exp(3, 6, 11);
    ConnectionTrackingUnsupported "NXBAC_CT_DATAPATH_SUPPORT": nx(1, 2, 1, 265), exp(3, 6, 42);
    BadHeaderType "NXBAC_BAD_HEADER_TYPE": exp(4, 6, 39);
    UnknownEncapProperty "NXBAC_UNKNOWN_ED_PROP": exp(4, 6, 40);
    BadEncapProperty "NXBAC_BAD_ED_PROP": exp(4, 6, 41);
    BadConjunction "NXBAC_BAD_CONJUNCTION": nx(1, 2, 2, 526), exp(3, 6, 15);
    UnknownInstruction "OFPBIC_UNKNOWN_INST": of(2, 6, 3, 0);
    UnsupportedInstruction "OFPBIC_UNSUP_INST": nx(1, 1, 2, 257), of(2, 6, 3, 1);
    BadInstructionTableId "OFPBIC_BAD_TABLE_ID": of(2, 6, 3, 2);
    UnsupportedMetadata "OFPBIC_UNSUP_METADATA": of(2, 6, 3, 3);
    UnsupportedMetadataMask "OFPBIC_UNSUP_METADATA_MASK": of(2, 6, 3, 4);
    BadInstructionExperimenter "OFPBIC_BAD_EXPERIMENTER": of(2, 6, 3, 5);
    BadInstructionExperimenterType "OFPBIC_BAD_EXP_TYPE": of(2, 2, 3, 5), of(3, 6, 3, 6);
    BadInstructionLength "OFPBIC_BAD_LEN": of(3, 6, 3, 7);
    InstructionPermission "OFPBIC_EPERM": of(3, 6, 3, 8);
    DuplicateInstruction "OFPBIC_DUP_INST": nx(2, 2, 3, 256), onf(3, 4, 2600), of(5, 6, 3, 9);
    BadMatchType "OFPBMC_BAD_TYPE": of(2, 6, 4, 0);
    BadMatchLength "OFPBMC_BAD_LEN": of(2, 6, 4, 1);
    BadMatchTag "OFPBMC_BAD_TAG": of(2, 6, 4, 2);
    BadEthernetMask "OFPBMC_BAD_DL_ADDR_MASK": of(2, 6, 4, 3);
    BadNetworkMask "OFPBMC_BAD_NW_ADDR_MASK": of(2, 6, 4, 4);
    BadWildcards "OFPBMC_BAD_WILDCARDS": nx(1, 1, 1, 262), of(2, 6, 4, 5);
    BadMatchField "OFPBMC_BAD_FIELD": nx(1, 1, 0, 263), of(2, 6, 4, 6);
    BadMatchValue "OFPBMC_BAD_VALUE": nx(1, 1, 1, 258), of(2, 6, 4, 7);
    BadMatchMask "OFPBMC_BAD_MASK": nx(1, 2, 1, 259), of(3, 6, 4, 8);
    BadPrerequisite "OFPBMC_BAD_PREREQ": nx(1, 2, 1, 260), of(3, 6, 4, 9);
    DuplicateField "OFPBMC_DUP_FIELD": nx(1, 2, 1, 261), of(3, 6, 4, 10);
    MatchPermission "OFPBMC_EPERM": of(3, 6, 4, 11);
    FlowModUnknown "OFPFMFC_UNKNOWN": of(2, 6, 5, 0);
    TableFull "OFPFMFC_TABLE_FULL": of(1, 1, 3, 0), of(2, 6, 5, 1);
    BadTableIdInCommand "NXFMFC_BAD_TABLE_ID": nx(1, 2, 5, 257), exp(3, 6, 13);
    BadTableId "OFPFMFC_BAD_TABLE_ID": nx(1, 1, 5, 257), of(2, 6, 5, 2);
    Overlap "OFPFMFC_OVERLAP": of(1, 1, 3, 1), of(2, 6, 5, 3);
    FlowModPermission "OFPFMFC_EPERM": of(1, 1, 3, 2), of(2, 6, 5, 4);
    BadTimeout "OFPFMFC_BAD_TIMEOUT": of(2, 6, 5, 5);
    BadEmergencyTimeout "OFPFMFC_BAD_EMERG_TIMEOUT": of(1, 1, 3, 3);
    BadCommand "OFPFMFC_BAD_COMMAND": of(1, 1, 3, 4), of(2, 6, 5, 6);
    BadFlags "OFPFMFC_BAD_FLAGS": nx(1, 1, 3, 258), nx(2, 2, 5, 258), of(3, 6, 5, 7);
    GroupExists "OFPGMFC_GROUP_EXISTS": nx(1, 1, 6, 0), of(2, 6, 6, 0);
    InvalidGroup "OFPGMFC_INVALID_GROUP": nx(1, 1, 6, 1), of(2, 6, 6, 1);
    WeightUnsupported "OFPGMFC_WEIGHT_UNSUPPORTED": nx(1, 1, 6, 2), of(2, 6, 6, 2);
    OutOfGroups "OFPGMFC_OUT_OF_GROUPS": nx(1, 1, 6, 3), of(2, 6, 6, 3);
    OutOfBuckets "OFPGMFC_OUT_OF_BUCKETS": nx(1, 1, 6, 4), of(2, 6, 6, 4);
    ChainingUnsupported "OFPGMFC_CHAINING_UNSUPPORTED": nx(1, 1, 6, 5), of(2, 6, 6, 5);
    WatchUnsupported "OFPGMFC_WATCH_UNSUPPORTED": nx(1, 1, 6, 6), of(2, 6, 6, 6);
    GroupLoop "OFPGMFC_LOOP": nx(1, 1, 6, 7), of(2, 6, 6, 7);
    UnknownGroup "OFPGMFC_UNKNOWN_GROUP": nx(1, 1, 6, 8), of(2, 6, 6, 8);
    ChainedGroup "OFPGMFC_CHAINED_GROUP": nx(1, 1, 6, 9), of(3, 6, 6, 9);
    BadGroupType "OFPGMFC_BAD_TYPE": nx(1, 1, 6, 10), of(3, 6, 6, 10);
    BadGroupCommand "OFPGMFC_BAD_COMMAND": nx(1, 1, 6, 11), of(3, 6, 6, 11);
    BadBucket "OFPGMFC_BAD_BUCKET": nx(1, 1, 6, 12), of(3, 6, 6, 12);
    BadWatch "OFPGMFC_BAD_WATCH": nx(1, 1, 6, 13), of(3, 6, 6, 13);
    GroupPermission "OFPGMFC_EPERM": nx(1, 1, 6, 14), of(3, 6, 6, 14);
    UnknownBucket "OFPGMFC_UNKNOWN_BUCKET": nx(1, 1, 6, 15), of(6, 6, 6, 15);
    BucketExists "OFPGMFC_BUCKET_EXISTS": nx(1, 1, 6, 16), of(6, 6, 6, 16);
    PortModBadPort "OFPPMFC_BAD_PORT": of(1, 1, 4, 0), of(2, 6, 7, 0);
    PortModBadHwAddr "OFPPMFC_BAD_HW_ADDR": of(1, 1, 4, 1), of(2, 6, 7, 1);
    PortModBadConfig "OFPPMFC_BAD_CONFIG": of(2, 6, 7, 2);
    PortModBadAdvertise "OFPPMFC_BAD_ADVERTISE": of(2, 6, 7, 3);
    PortModPermission "OFPPMFC_EPERM": of(3, 6, 7, 4);
    TableModBadTable "OFPTMFC_BAD_TABLE": of(2, 6, 8, 0);
    TableModBadConfig "OFPTMFC_BAD_CONFIG": of(2, 6, 8, 1);
    TableModPermission "OFPTMFC_EPERM": of(3, 6, 8, 2);
    QueueBadPort "OFPQOFC_BAD_PORT": of(1, 1, 5, 0), of(2, 6, 9, 0);
    QueueBadQueue "OFPQOFC_BAD_QUEUE": of(1, 1, 5, 1), of(2, 6, 9, 1);
    QueuePermission "OFPQOFC_EPERM": of(1, 1, 5, 2), of(2, 6, 9, 2);
    SwitchConfigBadFlags "OFPSCFC_BAD_FLAGS": of(2, 6, 10, 0);
    SwitchConfigBadLength "OFPSCFC_BAD_LEN": of(2, 6, 10, 1);
    SwitchConfigPermission "OFPSCFC_EPERM": of(3, 6, 10, 2);
    RoleStale "OFPRRFC_STALE": of(3, 6, 11, 0);
    RoleUnsupported "OFPRRFC_UNSUP": of(3, 6, 11, 1);
    RoleBad "OFPRRFC_BAD_ROLE": nx(1, 2, 1, 513), of(3, 6, 11, 2);
    MeterModUnknown "OFPMMFC_UNKNOWN": of(4, 6, 12, 0);
    MeterExists "OFPMMFC_METER_EXISTS": of(4, 6, 12, 1);
    InvalidMeter "OFPMMFC_INVALID_METER": of(4, 6, 12, 2);
    UnknownMeter "OFPMMFC_UNKNOWN_METER": of(4, 6, 12, 3);
    BadMeterCommand "OFPMMFC_BAD_COMMAND": of(4, 6, 12, 4);
    BadMeterFlags "OFPMMFC_BAD_FLAGS": of(4, 6, 12, 5);
    BadRate "OFPMMFC_BAD_RATE": of(4, 6, 12, 6);
    BadBurst "OFPMMFC_BAD_BURST": of(4, 6, 12, 7);
    BadBand "OFPMMFC_BAD_BAND": of(4, 6, 12, 8);
    BadBandValue "OFPMMFC_BAD_BAND_VALUE": of(4, 6, 12, 9);
    OutOfMeters "OFPMMFC_OUT_OF_METERS": of(4, 6, 12, 10);
    OutOfBands "OFPMMFC_OUT_OF_BANDS": of(4, 6, 12, 11);
    TableFeaturesBadTable "OFPTFFC_BAD_TABLE": of(4, 6, 13, 0);
    TableFeaturesBadMetadata "OFPTFFC_BAD_METADATA": of(4, 6, 13, 1);
    TableFeaturesPermission "OFPTFFC_EPERM": of(4, 6, 13, 5);
    TableFeaturesDuplicate "NXTFFC_DUP_TABLE": exp(4, 6, 44);
    BadPropertyType "OFPBPC_BAD_TYPE": nx(1, 2, 13, 2), exp(3, 3, 25), of(4, 4, 13, 2), of(5, 6, 14, 0);
    BadPropertyLength "OFPBPC_BAD_LEN": nx(1, 2, 13, 3), exp(3, 3, 26), of(4, 4, 13, 3), of(5, 6, 14, 1);
    BadPropertyValue "OFPBPC_BAD_VALUE": nx(1, 2, 13, 4), exp(3, 3, 27), of(4, 4, 13, 4), of(5, 6, 14, 2);
    TooManyProperties "OFPBPC_TOO_MANY": nx(1, 2, 14, 3), exp(3, 3, 28), onf(4, 4, 4443), of(5, 6, 14, 3);
    DuplicateProperty "OFPBPC_DUP_TYPE": nx(1, 2, 14, 4), exp(3, 3, 29), onf(4, 4, 4444), of(5, 6, 14, 4);
    BadPropertyExperimenter "OFPBPC_BAD_EXPERIMENTER": nx(1, 2, 14, 5), exp(3, 3, 30), onf(4, 4, 4445), of(5, 6, 14, 5);
    BadPropertyExperimenterType "OFPBPC_BAD_EXP_TYPE": nx(1, 2, 14, 6), exp(3, 3, 31), onf(4, 4, 4446), of(5, 6, 14, 6);
    AsyncInvalid "OFPACFC_INVALID": of(5, 6, 15, 0);
    AsyncUnsupported "OFPACFC_UNSUPPORTED": of(5, 6, 15, 1);
    AsyncPermission "OFPACFC_EPERM": of(5, 6, 15, 2);
    BundleUnknown "OFPBFC_UNKNOWN": onf(4, 4, 2300), of(5, 6, 17, 0);
    BundlePermission "OFPBFC_EPERM": onf(4, 4, 2301), of(5, 6, 17, 1);
    BundleBadId "OFPBFC_BAD_ID": onf(4, 4, 2302), of(5, 6, 17, 2);
    BundleExists "OFPBFC_BUNDLE_EXIST": onf(4, 4, 2303), of(5, 6, 17, 3);
    BundleClosed "OFPBFC_BUNDLE_CLOSED": onf(4, 4, 2304), of(5, 6, 17, 4);
    OutOfBundles "OFPBFC_OUT_OF_BUNDLES": onf(4, 4, 2305), of(5, 6, 17, 5);
    BundleBadType "OFPBFC_BAD_TYPE": onf(4, 4, 2306), of(5, 6, 17, 6);
    BundleBadFlags "OFPBFC_BAD_FLAGS": onf(4, 4, 2307), of(5, 6, 17, 7);
    BundleMessageBadLength "OFPBFC_MSG_BAD_LEN": onf(4, 4, 2308), of(5, 6, 17, 8);
    BundleMessageBadXid "OFPBFC_MSG_BAD_XID": onf(4, 4, 2309), of(5, 6, 17, 9);
    BundleMessageUnsupported "OFPBFC_MSG_UNSUP": onf(4, 4, 2310), of(5, 6, 17, 10);
    BundleMessageConflict "OFPBFC_MSG_CONFLICT": onf(4, 4, 2311), of(5, 6, 17, 11);
    BundleTooManyMessages "OFPBFC_MSG_TOO_MANY": onf(4, 4, 2312), of(5, 6, 17, 12);
    BundleMessageFailed "OFPBFC_MSG_FAILED": onf(4, 4, 2313), of(5, 6, 17, 13);
    BundleTimeout "OFPBFC_TIMEOUT": onf(4, 4, 2314), of(5, 6, 17, 14);
    BundleInProgress "OFPBFC_BUNDLE_IN_PROGRESS": onf(4, 4, 2315), of(5, 6, 17, 15);
    BundleBadVersion "OFPBFC_BAD_VERSION": exp(5, 6, 22);
    MonitorUnknown "OFPMOFC_UNKNOWN": of(5, 6, 16, 0);
    MonitorExists "OFPMOFC_MONITOR_EXISTS": nx(1, 2, 1, 517), exp(3, 4, 6), of(5, 6, 16, 1);
    UnknownMonitor "OFPMOFC_UNKNOWN_MONITOR": nx(1, 2, 1, 519), exp(3, 4, 8), of(5, 6, 16, 3);
    MonitorBadFlags "OFPMOFC_BAD_FLAGS": nx(1, 2, 1, 518), exp(3, 4, 7), of(5, 6, 16, 5);
    MonitorBadCommand "OFPMOFC_BAD_COMMAND": of(5, 6, 16, 4);
    MonitorBadTable "OFPMOFC_BAD_TABLE_ID": of(5, 6, 16, 6);
    MonitorBadOut "OFPMOFC_BAD_OUT": of(5, 6, 16, 7);
    ResumeUnsupported "NXR_NOT_SUPPORTED": nx(1, 2, 1, 533), exp(3, 6, 34);
    ResumeStale "NXR_STALE": nx(1, 2, 1, 534), exp(3, 6, 35);
    MonitorBadEvent "NXBRC_FM_BAD_EVENT": nx(1, 2, 1, 520), exp(3, 6, 9);
    Hardware "NXFMFC_HARDWARE": nx(1, 2, 5, 256), exp(3, 6, 12);
    TlvBadCommand "NXTTMFC_BAD_COMMAND": nx(1, 2, 1, 527), exp(3, 6, 16);
    TlvBadLength "NXTTMFC_BAD_OPT_LEN": nx(1, 2, 1, 528), exp(3, 6, 17);
    TlvBadField "NXTTMFC_BAD_FIELD_IDX": nx(1, 2, 1, 529), exp(3, 6, 18);
    TlvTableFull "NXTTMFC_TABLE_FULL": nx(1, 2, 1, 530), exp(3, 6, 19);
    TlvAlreadyMapped "NXTTMFC_ALREADY_MAPPED": nx(1, 2, 1, 531), exp(3, 6, 20);
    TlvDuplicate "NXTTMFC_DUP_ENTRY": nx(1, 2, 1, 532), exp(3, 6, 21);
    QueueError "NXQOFC_QUEUE_ERROR": exp(5, 6, 23);
    NotConfigured "NXST_NOT_CONFIGURED": nx(1, 2, 1, 535), exp(3, 6, 36);
    InvalidTlvField "NXFMFC_INVALID_TLV_FIELD": nx(1, 2, 1, 536), exp(3, 6, 37);
    TlvInUse "NXTTMFC_INVALID_TLV_DEL": nx(1, 2, 1, 537), exp(3, 6, 38);
    MatchConnectionTrackingUnsupported "NXBMC_CT_DATAPATH_SUPPORT": nx(1, 2, 1, 264), exp(3, 6, 43);
    MultipartReplyTimeout "OFPBRC_MULTIPART_REPLY_TIMEOUT": of(5, 6, 1, 15);
    MultipartBadSchedule "OFPBRC_MULTIPART_BAD_SCHED": of(6, 6, 1, 16);
    RequestUnknown "OFPBRC_UNKNOWN": of(6, 6, 1, 18);
    BadMeter "OFPBAC_BAD_METER": of(6, 6, 2, 17);
    CannotSynchronize "OFPFMFC_CANT_SYNC": of(5, 6, 5, 8);
    BadPriority "OFPFMFC_BAD_PRIORITY": of(5, 6, 5, 9);
    IsSynchronized "OFPFMFC_IS_SYNC": of(5, 6, 5, 10);
    RoleIdUnsupported "OFPRRFC_ID_UNSUP": of(6, 6, 11, 3);
    RoleIdInUse "OFPRRFC_ID_IN_USE": of(6, 6, 11, 4);
    TableFeaturesBadCapabilities "OFPTFFC_BAD_CAPA": of(6, 6, 13, 6);
    TableFeaturesBadMaxEntries "OFPTFFC_BAD_MAX_ENT": of(6, 6, 13, 7);
    TableFeaturesBadFeatures "OFPTFFC_BAD_FEATURES": of(6, 6, 13, 8);
    TableFeaturesBadCommand "OFPTFFC_BAD_COMMAND": of(6, 6, 13, 9);
    TableFeaturesTooMany "OFPTFFC_TOO_MANY": of(6, 6, 13, 10);
    BadPropertyExperimenterValue "OFPBPC_BAD_EXP_VALUE": nx(1, 2, 14, 7), exp(3, 3, 32), onf(4, 4, 4447), of(5, 6, 14, 7);
    PropertyPermission "OFPBPC_EPERM": nx(1, 2, 14, 8), exp(3, 3, 33), onf(4, 4, 4448), of(5, 6, 14, 8);
    InvalidMonitor "OFPMOFC_INVALID_MONITOR": of(5, 6, 16, 2);
    BundleScheduleUnsupported "OFPBFC_SCHED_NOT_SUPPORTED": of(6, 6, 17, 16);
    BundleScheduleFuture "OFPBFC_SCHED_FUTURE": of(6, 6, 17, 17);
    BundleSchedulePast "OFPBFC_SCHED_PAST": of(6, 6, 17, 18);
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl std::error::Error for Error {}

/// Maximum bytes of a failed message that are quoted in an error. The specification requires at
/// least 64 (OpenFlow 1.3.5 section 7.5.4); Open vSwitch quotes the whole message, so that clients
/// can print what was wrong. An error's own header needs 20 bytes.
const QUOTED: usize = u16::MAX as usize - 20;

impl Error {
    /// Returns its numbers in a version; None if it has none.
    pub fn number(self, version: Version) -> Option<WireError> {
        let version = version as u8;
        NUMBERS[self as usize]
            .iter()
            .find(|number| (number.since..=number.until).contains(&version))
            .map(|number| number.wire)
    }

    /// Returns its numbers in a version; those of [`Error::Unencodable`] if it has none.
    pub fn wire(self, version: Version) -> WireError {
        self.number(version)
            .or_else(|| Error::Unencodable.number(version))
            .expect("every version numbers the unencodable error")
    }

    /// Returns the error with these numbers; the first in the table if several share them.
    pub fn from_wire(version: Version, wire: WireError) -> Option<Error> {
        Error::ALL
            .iter()
            .copied()
            .find(|error| error.number(version) == Some(wire))
    }

    /// Creates the answer to a failed message, with its beginning quoted.
    pub fn about(self, request: &[u8]) -> ErrorMessage {
        ErrorMessage {
            kind: ErrorKind::Known(self),
            data: request[..request.len().min(QUOTED)].to_vec(),
        }
    }
}
