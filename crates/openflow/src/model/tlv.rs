//! Maps of tunnel options, which assign options (class, type) to `tun_metadata` fields
//! (`NXT_TLV_TABLE_MOD`).

/// One entry of a map.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TlvMapping {
    /// The option's class.
    pub class: u16,
    /// Its type.
    pub kind: u8,
    /// Length of its body in bytes: 0 to 124, a multiple of 4.
    pub length: u8,
    /// The field, 0 to 63.
    pub field: u16,
}

/// Commands for a map.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u16)]
pub enum TlvCommand {
    /// Add entries.
    Add = 0,
    /// Remove entries, by their fields.
    Delete = 1,
    /// Remove all entries.
    Clear = 2,
}

/// A change of a map.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TlvTableMod {
    /// The command.
    pub command: TlvCommand,
    /// The entries.
    pub mappings: Vec<TlvMapping>,
}

/// A map.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TlvTable {
    /// Total bytes available for options.
    pub max_space: u32,
    /// Number of fields.
    pub max_fields: u16,
    /// The entries, by ascending field.
    pub mappings: Vec<TlvMapping>,
}
