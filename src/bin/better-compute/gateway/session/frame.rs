//! A frame from a node, its event still encoded: what this program does not know of an event must be
//! stored as it came.

use bcd::proto::{GatewayFrame, Message, Method, NodeFrame, session_service};
use proto_gen::codec::{Decoder, Fault, Fields, Value};

/// The number of `NodeFrame.event`.
const EVENT: u32 = 5;

/// The session's method, with frames of this form.
pub const SESSION: Method<Frame, GatewayFrame> = Method::bidi(session_service::SESSION.path());

/// A frame: either an event's bytes or one of the other kinds.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Frame {
    pub known: NodeFrame,
    pub event: Option<Vec<u8>>,
}

impl Message for Frame {
    const NAME: &'static str = NodeFrame::NAME;
}

impl Fields for Frame {
    fn encode_fields(&self, out: &mut Vec<u8>) {
        self.known.encode_fields(out);
        if let Some(event) = &self.event {
            proto_gen::codec::put_bytes(out, EVENT, event);
        }
    }

    fn merge_field(
        &mut self,
        number: u32,
        value: Value<'_>,
        decoder: &mut Decoder,
    ) -> Result<(), Fault> {
        if number != EVENT {
            self.known.merge_field(number, value, decoder)?;
            // Of the kinds of a oneof, the last one in the frame counts.
            if self.known.kind.is_some() {
                self.event = None;
            }
            return Ok(());
        }
        if let Some(bytes) = decoder.bytes(value)? {
            self.known.kind = None;
            self.event = Some(bytes);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use bcd::proto::{Event, Heartbeat, NodeFrameKind};

    use super::*;

    #[test]
    fn an_event_stays_as_it_came_and_other_kinds_are_read() {
        let event = Event {
            sequence: 7,
            ..Event::default()
        };
        let frame = NodeFrame {
            kind: Some(NodeFrameKind::Event(event.clone())),
        };
        let heard = Frame::decode(&frame.encode_to_vec()).unwrap();
        assert_eq!(heard.event, Some(event.encode_to_vec()));
        assert_eq!(heard.known, NodeFrame::default());
        assert_eq!(heard.encode_to_vec(), frame.encode_to_vec());

        let beat = NodeFrame {
            kind: Some(NodeFrameKind::Heartbeat(Heartbeat::default())),
        };
        let heard = Frame::decode(&beat.encode_to_vec()).unwrap();
        assert_eq!((heard.known, heard.event), (beat.clone(), None));

        // Both in one frame: the later one is meant.
        let mut both = frame.encode_to_vec();
        both.extend(beat.encode_to_vec());
        assert_eq!(Frame::decode(&both).unwrap().event, None);
        let mut both = beat.encode_to_vec();
        both.extend(frame.encode_to_vec());
        let heard = Frame::decode(&both).unwrap();
        assert!(heard.event.is_some() && heard.known.kind.is_none());
    }
}
