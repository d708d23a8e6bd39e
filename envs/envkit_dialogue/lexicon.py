"""The lexicon: which words and phrases mean which concept.

A phrase may end in `*`, which stands for any ending of its last word. At each place of a sentence
the longest phrase wins, and its words are then used up: "email address" is an e-mail address and no
address. `NEUTRAL` lists phrases that must not count as anything.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Final, NamedTuple

from envkit_dialogue import goods


class Concept(StrEnum):
    """What a phrase is about."""

    ASK = "ask"
    WHAT = "what"
    WHERE = "where"
    WHY = "why"
    EMAIL = "email"
    NAME = "name"
    ZIP = "zip"
    PHONE = "phone"
    ORDER = "order"
    ORDER_NUMBER = "order number"
    ITEM = "item"
    PRODUCT = "product"
    BOUGHT = "bought"
    OPTION = "option"
    VALUE = "value"
    INSTEAD = "instead"
    FAULT = "fault"
    TROUBLE = "trouble"
    REFUND = "refund"
    METHOD = "method"
    LAND = "land"
    ADDRESS = "address"
    SHIP = "ship"
    PICTURE = "picture"
    CONSENT = "consent"
    WANT_ME = "want me"
    GOAL = "goal"
    ELSE = "else"
    WAIT = "wait"
    DONE = "done"
    REFUSE = "refuse"
    OFFER = "offer"
    BYE = "bye"
    CANCEL = "cancel"
    RETURN = "return"
    EXCHANGE = "exchange"
    CHAT = "chat"
    OR = "or"
    RANGE = "range"
    NEUTRAL = "neutral"


LEXICON: Final[dict[Concept, str]] = {
    Concept.ASK: """please|pls|plz|could you|can you|would you|will you|may i have|may i know
        |may i ask|can i have|can i get|could i have|could i get|could i ask|can i ask|i need
        |i would need|i will need|we need|we would need|we will need|i would need|i require
        |i would require|i would like to know|i would like|i would love|tell me|let me know|give me
        |send me|send us|provide|share|specify|type in|enter|clarify|do you have|have you got|got a
        |got the|do you know|do you remember|do you recall|would happen to know|mind telling
        |do you mind|would you mind|need to know|need to note|need to have|looking for your|confirm
        |reply with|is missing|i am missing|we are missing|did not catch|narrow it down|to hand
        |i can look|i can find|i can pull|remind me|help me out with|spell|choose|pick|select|is it
        |was it|did it|is this|are you|were you|may we|do you|did you|can we|could we|might i
        |state|indicate|supply|mention|i still need|all i need|i lack|i have got to|i have to|i must
        |it is asking|the form demands|asks for|would be ideal|would help|would do|would be great
        |would be helpful|wondering|curious|is required|are required|be so kind|any chance
        |i have not got|i do not have|i do not see|we do not have|next i need|say|note down|last thing|next thing|next up|finally|last question|need""",
    Concept.WHAT: """what|which|which one|which ones|how|who|whose|whom|when""",
    Concept.WHERE: "where|where to|whereto",
    Concept.WHY: """why|reason*|how come|motiv*|what made you|what makes you|what led you
        |what prompted|what is behind|what caused|cause of|what happened|what has happened
        |what went wrong|explanation|what for|grounds for""",
    Concept.EMAIL: """email*|e mail*|email address*|e mail address*|mail address*|mail|inbox
        |login|log in|log in with|sign in with|sign up with|signed up with""",
    Concept.NAME: """name|names|full name|first name|last name|family name|given name|legal name
        |surname|who i am chatting with|who i am talking to|who i am speaking to
        |who i am speaking with|who am i|who i am|who is this|who is contacting|whom am i
        |who is writing|who is there|who is on|who is it|who are you|whom i|who i have|who do i have
        |what to call you|should i call you|can i call you|may i call you|shall i call you
        |do i call you|could i call you|how should i address you|how do i address you
        |how may i address you|how to address you|address you as|how are you listed|you go by
        |you are called|are you called|is this ms|is this mr|is this mrs|am i speaking
        |am i chatting|am i talking|introduce yourself|on whose behalf|on her behalf
        |on his behalf|account holder|account belong*|have the pleasure|your identity|initials
        |the account is under|booked under|registered under|ordered under""",
    Concept.ZIP: """zip*|zip code*|zipcode*|postal code*|postcode*|post code*|postal|area code
        |area code for the post|five digits|digits at the end of your address|digits of your address
        |digits of your address""",
    Concept.PHONE: """phone*|phone number*|telephone*|telephone number*|mobile*|mobile number*
        |cell|cell number|cellphone*|landline*|call you at|call you on|call you back|call you about
        |call you|ring you|ring you back|text you|reach you|reach you on|reach you at|contact number*
        |number to call|number to reach|number can we|number to ring|number we can|number i can
        |daytime number|number did you call|dial*|whatsapp|sms|callback|call back|country code
        |get hold of you|contact you on|contact you by""",
    Concept.ORDER: """order|orders|purchase|purchases|parcel|parcels|package|delivery|deliveries
        |shipment|shipments|invoice|transaction*""",
    Concept.ORDER_NUMBER: """order number*|order no|order id|order ids|order code*|order reference*
        |order #|order num*|number of your order|number of the order|number for your order
        |number for the order|reference number|reference code|reference|purchase number*
        |confirmation number|confirmation code|booking number|number that starts|number starting
        |number beginning|code beginning|code starting|code that starts|starts with a|starts with w
        |begins with w|beginning with w|receipt number|tracking number|transaction id|invoice number
        |which order|what order|which orders|which of your orders|which of your recent orders
        |which purchase|which of your purchases|which of your recent purchases|which delivery
        |which parcel|which shipment|which package|order in question|the older order|the newer order
        |one of your orders|number on your receipt|number on the receipt|number on your confirmation
        |order are we|order is this|order is it|purchase is this|order you mean|order you are
        |order does this|order would you|order do you|order did you|order should i|order can i
        |id of the order|id of your order|number from your confirmation|order details""",
    Concept.ITEM: """item|items|product|products|article*|piece|goods|thing|things|unit|the one
        |product name|name of the product|name of the item|item name|faulty one|which bit
        |large one|small one|which part of|whole order or|everything or|all of it or|one of them only
        |kind of product|type of product|merchandise""",
    Concept.BOUGHT: """did you buy|did you purchase|did you order|you bought|you purchased
        |you ordered|did you get from us|have you got there|have you bought|have you ordered
        |do you have there|giving you trouble|causing you trouble|causing trouble|are you returning
        |are you sending back|do you want to return|would you like to return|you want to return
        |you would like to return|you like to return|you wish to return|like to send back
        |want to send back|like sent back|want sent back|are you exchanging|do you want to exchange
        |would you like to exchange|you want to exchange|you would like to exchange|want swapped
        |want swapped out|like swapped|want exchanged|like exchanged|do you want to swap
        |would you like to swap|want replaced|you would like to swap|want to give back
        |are you not happy with|is broken|is faulty|arrived broken|arrived damaged|is it about
        |are you talking about|are we talking about|are you referring to""",
    Concept.OPTION: """colour*|color*|size|sizes|version*|variant*|variation*|model*|style*
        |finish|material*|feature*|shade*|configuration|specification*|option instead
        |with the zip or without|with or without|alternative item|replacement item
        |replacement option|replacement look|new one look|new one should|pick instead|type instead
        |kind instead|edition|which option|what option|options|the option""",
    Concept.INSTEAD: """instead|in place of|in return for|in its place|in exchange|in exchange for
        |as a replacement|as replacement|as the replacement|swap it for|swap for|swap it to
        |swap it with|swap them for|swap to|exchange it for|exchange them for|exchange it to
        |exchange for|exchange to|change it to|change it for|change it into|change to|replace it
        |replace it with|replace it by|replace them with|replaced with|replaced by|trade it for
        |trade for|switch it to|switch to|in lieu|this time|rather have|get for it|want for it
        |new one|the new item|the replacement|a replacement should|exchanged for|swapped for
        |actually want to get""",
    Concept.FAULT: """wrong with it|wrong with them|wrong with the|wrong with your|wrong with that
        |anything wrong|something wrong|is it wrong|was wrong|is wrong with|the matter with
        |problem with it|problem with the|problem with them|issue with it|issue with the
        |issue with them|issue with your|problem with your|defect*|defective|not working|not work
        |not fit|too big|too small|broken|damaged|faulty|damage|change of heart|changed mind
        |changed your mind|change your mind|change of mind|by mistake|not need|no longer need
        |no longer want|not want it|in what way|dissatisfied|unhappy with|not happy with
        |not like about|disappoint*|not satisfied|not suit|not meet|expectations|wrong size
        |not right|not as described|arrive damaged|not to your liking|trouble with it
        |trouble with the""",
    Concept.REFUND: """refund*|money back|your money|the money|reimburse*|pay you back|paid back
        |pay you|repay*|funds|amount returned|amount back|credited|the amount|repayment
        |price difference|dollars|difference|credit you|get back|cash back|pay back""",
    Concept.METHOD: """card|cards|credit card|debit card|gift card*|gift balance|store credit
        |voucher*|paypal|bank|bank account|bank credit|bank transfer|payment method*|payment option*
        |payment|original payment|original payment method|original method|method|account credit
        |shop credit|balance|wallet|same way you paid|how you paid|card you paid|visa|mastercard
        |cash|form of payment|means of payment|destination""",
    Concept.LAND: """land|go|go to|goes|be sent|sent to|put it|be put|be put on|used for|want that
        |like that|like it|want it|onto|receive|back to|get your|to get|be paid|returned to|end up
        |be returned|issued|issue|issued to|deposited|transferred|credited to|sent back to""",
    Concept.ADDRESS: """where to $|to which address|address|addresses|new address|street|house number|flat number|city|town
        |delivery address|shipping address|postal address|new place|new home|new house|new flat
        |new location|location|delivery location|drop off|destination address|address details
        |delivery details|shipping details|country|moved to|moving to|moved|where do you live now
        |default address|have it delivered|have it sent|have it shipped|want it delivered
        |want it sent|want it shipped|like it delivered|like it sent|like it shipped|apartment""",
    Concept.SHIP: """ship|ship it|ship to|ship this|send|send it|send this|send your|send the
        |deliver|deliver it|deliver to|delivered|be going|be delivered|be shipped|redirect*|reroute*
        |dispatch*|forward|shipping|take it|bring it|package go|parcel go|order go|receive the package
        |receive the parcel|receive it|receive your|shipped to|sent to""",
    Concept.PICTURE: """photo|photos|photograph*|photographic|picture|pictures|pic|pics|image
        |images|snapshot*|snap|a shot|shots|couple of shots|screenshot*|scan|camera|see the crack
        |see the damage|see what it looks|see how it looks|show me|show us|upload*|attach*|visual*
        |selfie|take a look at the damage|phone camera""",
    Concept.CONSENT: """do you confirm|can you confirm|could you confirm|please confirm
        |confirm that|confirm this|confirm it|confirm the|confirm if|your confirmation|ok with you
        |okay with you|alright with you|all right with you|fine with you|good with you|fine by you
        |ok for you|okay for you|alright for you|all right for you|fine for you|is that ok
        |is that okay|is that alright|is that all right|is this ok|is this okay|is this alright
        |is it ok|is it okay|is it alright|is it all right|is that fine|is this fine|would it be fine
        |would that be fine|would it be ok|would it be okay|would that be ok|would that be okay
        |would it be alright|would that be alright|ok to go ahead|okay to go ahead|fine to go ahead|happy with me going ahead|going ahead
        |is it fine|is it fine if|fine if i|ok if i|okay if i|alright if i
        |may i go ahead|can i go ahead|shall i go ahead|should i go ahead|proceed|should i go|should i proceed|should i cancel|should i process|should i submit
        |should i change|should i make|should i book|should i return|should i exchange
        |should i update|should i do|should i start|should i place|do you agree|you agree|agreed
        |agree to|approv*|green light|say yes|yes or no|are you sure|you sure|ready for me to
        |happy for me|happy with that|happy with this|permission|authorise|authorize|authorization|authorisation|your consent|consent to|consent
        |sound good|sounds good|sound right|sound ok|sound okay|sound alright|does that work
        |does this work|would that work|work for you|look right|look good|look correct|looks right
        |looks good|is that correct|is this correct|is that right|is this right|correct
        |put it through|give me the nod|thumbs up|the okay|your okay|your ok|the go ahead
        |can i process|can i cancel|can i submit|can i make|can i return|can i exchange
        |can i change|can i book|can i do that|can i do this|can i update|may i process|may i cancel
        |may i submit|may i make|may i return|may i exchange|may i change|may i update|may i do
        |may i do that|may i proceed|can i proceed|could i process|could i cancel|could i proceed
        |can we proceed|everything right|all correct|if you agree|if that is ok|if that is okay
        |any objection*|do you accept|is it a yes|is that a yes|a clear yes|clear to go|good to go
        |go for it|do you still want|you definitely want|you really want|are you certain|on board
        |are we agreed|are we good|hit the button|press the button|pull the trigger|type yes
        |answer yes|reply yes|with yes|with a yes|need your yes|want to go through with
        |happy to go ahead|a yes|a simple yes""",
    Concept.WANT_ME: """shall i|shall we|should i|should we|want me to|like me to|wish me to|prefer me to|want us to|like us to
        |for me to""",
    Concept.GOAL: """how can i help|how can i help you|how may i help|how could i help|can i help
        |how can i assist|how may i assist|how can i be of|how can we help|how may we help
        |what can i do|what can we do|what may i do|what would you like to do
        |what would you like me to do|what do you want to do|what do you want me to do
        |what would you like us|what brings you|what is it about|what is this about
        |what is it regarding|regarding|what is up|what is on your mind|what are you looking for
        |what you are looking for|what you need|what do you wish|your request|your concern
        |your inquiry|your enquiry|your query|sort out|seems to be|i am all ears|all ears
        |what is going on|what are we doing|what we are doing|hoping to get|hoping to achieve
        |hope to achieve|like to achieve|wish to happen|want to happen|like to happen|happen next
        |what can i help|what may i help|i can help you with|i can do for you|help you today
        |purpose of|nature of|what seems|the problem|the issue|the trouble|the matter
        |your question|reaching out|contacting us|getting in touch|writing in|like to get done
        |need help with|help with today|what help|reason for your call|reason for your message
        |reason for contacting|reason you are contacting|why you are contacting
        |why are you contacting|why you contacted|what you would like us|get sorted
        |what do you want $|what do you need $|how can i $|go ahead|fire away|i am listening|go on|like done
        |like to have done|want done|do for you today|do for you|your reason for contacting|be of help
        |be of service|be of assistance|outcome|resolution|resolve*|what you want to do
        |what you would like to do|walk me through|describe the|how can i be of service
        |take care of for you|explain the|explain what|refund or a replacement
        |money back or would you|a refund or an exchange|return or exchange|returned or exchanged
        |exchange or a refund|a refund or a replacement|a refund or a new""",
    Concept.ELSE: """anything else|anything more|anything further|anything other|something else
        |something more|something further|another thing|another matter|another issue
        |another question|another request|another order|any other|any others|any more questions
        |any further|other matter*|other issue*|other question*|other request*|other concern*
        |other orders|your other orders|more questions|further questions|else i can|else we can
        |else you need|what else|is that it|is that all|is that everything|was that all|was that it
        |was that everything|that be all|that be everything|that be it|does that cover
        |does this cover|cover everything|are you all set|you all set|all set now|other than that
        |apart from that|besides that|more i can|more we can|more you need|more you needed
        |more for you|in any other|all for today|all for now|it for today|it for now
        |everything for today|all you needed|all you need|everything you needed|everything you need
        |still need|left to do|other ways|one more thing|still on your list|on your list""",
    Concept.WAIT: """moment|one moment|a moment|second|a second|sec|one sec|minute|a minute
        |minutes|hold on|hang on|hang tight|hold the line|bear with me|bear with|checking|looking
        |looking into|look into|looking that up|looking it up|let me look|let me check|let me see
        |let me pull|let me find|let me review|let me open|let me go|let me get|let me search
        |let me verify|let me have a look|let me take a look|stay with me|stay tuned
        |be right back|be right with you|right with you|get back to you|patience|be patient
        |short while|little while|a while|a bit|while i|allow me|wait|waiting|one tick|a tick
        |i will check|i will look|i will see|i will find|i will review|i will go through
        |i will take a look|i will have a look|i will check on|i am pulling|pulling up
        |am searching|searching for|loading|i am reviewing|reviewing|i am going through
        |going through your|still here|working on it|working on that|on it|do not go away|back soon
        |back shortly|looking at your|shortly""",
    Concept.DONE: """done|all done|has been|have been|return is through|exchange is through|refund is through|order is through
        |it is through|was able to|went through
        |is saved|are saved|is booked|is in place|is updated|is changed|is cancelled|is canceled
        |is complete|is completed|is confirmed|is processed|is finalised|is finalized|is arranged
        |is on its way|are on their way|on its way|is all set|is set up|is sorted|sorted for you
        |sorted|all sorted|i have cancelled|i have canceled|i have processed|i have updated
        |i have changed|i have booked|i have issued|i have made the|i have submitted
        |i have exchanged|i have returned|i have refunded|i have arranged|i have completed
        |i have set up|i have placed|i have put|i have gone ahead|i have now
        |we have cancelled|we have processed|we have updated|we have changed|we have issued
        |we have refunded|we have booked|i cancelled|i canceled|i processed|i updated
        |i changed|i booked|i issued|i submitted|i exchanged|i refunded|i completed|cancelled
        |canceled|processed|successful*|taken care of|everything is updated|is updated now
        |got that done|that is it all done|is now|are now|now shows|now reads|is official
        |is under way|is underway|is registered|is recorded|made the change|made the changes
        |put through|gone through|you will be charged|will not be charged|you will get your money
        |you will have your money|will be refunded|will arrive in|mission accomplished|in the bag
        |is finished|all finished|that is everything done|updated|exchanged|refunded""",
    Concept.REFUSE: """i do not have the authority|i am not authorized|i am not authorised|not authorized|not authorised|can not|cannot|unable|not able|not allowed|not allow|not permitted|not permit
        |not possible|impossible|no way|against the rules|against our|against policy
        |against the policy|policy|policies|our terms|our rules|the rules|not something we
        |not offer|not eligible|not covered|not qualify|final sale|past the|passed|expired
        |outside the|outside our|beyond the|too late|out of time|after 30 days|30 days|window
        |no longer possible|no longer be|no longer eligible|not an option|out of my hands
        |not have the authority|no authority|decline|declined|refuse|refuse*|reject*|turn down
        |turn that down|no exceptions|exception*|make an exception|wish i could|would have to say no
        |have to say no|has to be no|answer is no|is a no|not accept|will not be able|not be able
        |no can do|not do that|not do this|not take|not make|not change|not cancel|not refund
        |not exchange|not something i|nothing i can do|hands are tied|unfortunately
        |i am afraid|already shipped|already left|already on its way|hygiene|prohibit*|not in a position
        |not feasible|off the table|ruled out|non refundable|nonreturnable|non returnable
        |not returnable|not refundable|no returns|no refunds|regret*|deadline""",
    Concept.OFFER: """how about|what about a|what i can do|the best i can|best i can|best we can
        |what we can do is|i can offer|we can offer|could offer|i could offer|can only offer
        |offer you|i could give you|i can give you a|we could give you|as an alternative|alternative
        |alternatively|would you accept|would you settle|would you consider|would you be open
        |would you be interested|would you be happy with a|would a voucher do|would a|would an
        |instead of a refund|instead of the refund|instead of a return|instead of cancelling
        |instead of canceling|in lieu of a|goodwill|discount*|compensat*|partial refund|free of charge
        |could i interest you|interest you in|another option would|one option would|settle for
        |make it up to you|one thing i can do|something i can do|what is possible is|i could instead
        |we could instead|could do instead|can do instead|meet you halfway""",
    Concept.BYE: """bye|goodbye|good bye|bye bye|farewell|take care|see you|so long|cheerio
        |nice day|great day|good day|lovely day|wonderful day|pleasant day|nice evening
        |great evening|good evening ahead|lovely evening|good night|nice weekend|great weekend
        |good weekend|lovely weekend|rest of your|nice one|enjoy*|have a good|have a great
        |have a nice|have a lovely|have a wonderful|have a pleasant|close this chat|close the chat
        |closing this chat|closing the chat|end this chat|end the chat|ending this chat
        |ending our conversation|end our conversation|end the conversation|close this conversation
        |close our conversation|come back any time|come back anytime|your business
        |see you again|hear from you|until next time|thank you for contacting|thanks for contacting
        |thank you for reaching|thanks for reaching|thank you for choosing|thanks for choosing
        |thank you for shopping|thanks for shopping|thank you for calling|thanks for calling
        |thank you for your patience|thanks for your patience|thank you for your time
        |thanks for your time|thanks for chatting|thank you for chatting|thanks for getting in touch
        |thanks again for|thank you for getting in touch|thanks for stopping|pleasure helping
        |pleasure to help|pleasure talking|pleasure chatting|pleasure assisting|was a pleasure
        |all the best|best wishes|stay safe|stay well|wish you|signing off|log off|over and out
        |catch you|talk soon|talk to you|speak soon|ciao|till next time|thank you for being
        |here if you need|here whenever""",
    Concept.CHAT: """weather|rain*|sunny|holiday*|vacation*|game|football|match|movie*|film*|music
        |cats|dogs|pets|cat|dog|coffee|tea|lunch|dinner|breakfast|joke*|weekend plans|any plans
        |how are you|how are you doing|how is your|how is life|how has your|how was your|how is it going
        |lovely|monday|friday|grandmother|year has flown|time flies|cold snap|hope you are|staying warm
        |last night|funny|family|kids|birthday|christmas|nice to meet|pleased to meet|favourite
        |favorite|hobb*|team|song|where are you from|where do you live|where you live|over there
        |traffic|news|sports|the office|happy to hear|glad to hear|great to hear""",
    Concept.OR: "or",
    Concept.RANGE: """come in|comes in|available in|we have it in|we have them in|have it in|we stock
        |comes as|in stock are|choose from|choices are|options are|to choose between""",
    Concept.CANCEL: "cancel|cancels|cancelling|canceling|cancellation|call off|calling off|void",
    Concept.RETURN: """return|returns|returning|send back|sending back|take back|taking back
        |bring back|take it back|send it back|sent back|give back|give it back""",
    Concept.EXCHANGE: """exchange|exchanges|exchanging|swap*|replace|replacing|replacement
        |switch|switching|trade""",
    Concept.NEUTRAL: """thank you for confirming|thanks for confirming|can not be undone
        |can not undo|not be undone|can not believe|can not see|can not find|can not locate
        |can not pull|can not open|can not tell|can not wait|can not quite|can not make out
        |unable to find|unable to locate|not able to find|email we sent|mail we sent
        |confirmation email|confirmation mail|an email|by email|via email|without the email
        |without your email|without an email|without email|email with|email did not|email does not
        |not by email|an email with|no worries|no problem|not at all|if you can not|in order to
        |i love that name|that name|found the name|thanks for the photo
        |thank you for the photo|thanks for the picture|thank you for the picture|got your message
        |i see the|on our books|on my end|in the meantime|before we start|before i start
        |first of all|get started|get you verified|just to check|for our records
        |just out of interest|as before|the same address|which applies|in case|at the moment
        |i can not process that without|can not do that without|can not do this without
        |can not proceed without|can not look|can not help you without|can not go on without
        |hear the one|the one about|sure thing|one thing|second one|first one|second item|the second|a note|once|in your favour|right on
        |thanks for waiting|thank you for waiting|i already have|already have your|i got your
        |thanks for your email|thank you for your email|thanks for the email|i have your name
        |i have got your name|i have your email|thanks for your message""",
    Concept.VALUE: "|".join(
        [*goods.COLOURS, *goods.SIZES, *goods.WOODS, "yellow", "purple", "pink", "brown", "orange"]
        + ["silver", "gold", "beige", "navy", "leather", "cotton", "plastic", "metal", "left"]
    ),
    Concept.PRODUCT: "|".join(
        [*goods.PRODUCTS, *(f"{name}s" for name in goods.PRODUCTS)]
        + """laptop*|tablet*|headphone*|charger*|headset*|jacket*|coat*|shirt*|t shirt*|shoe*|boot*
        |sneaker*|trouser*|jeans|dress|dresses|hat|hats|sock*|speaker*|monitor*|screen|watch|watches
        |bag|bags|lamp*|mug*|bottle*|chair*|table|tables|desk|toaster*|blender*|kettle*|vase*|book
        |books|keyboard*|mouse|printer*|camera bag|sweater*|suitcase*|umbrella*|backpack*|toy|toys
        |plate*|pan|pans|frame*|board*|shelf|tray*|clock*|pillow*|blanket*|towel*|glove*|scarf
        |sunglasses|wallets|belt*|skirt*|robe*|pants|cable*|case|cases""".split("|")
    ),
}

_STOP: Final = "*"
Phrase = tuple[tuple[str, ...], Concept]


class Hit(NamedTuple):
    """A concept and the words that name it."""

    concept: Concept
    start: int
    end: int
    """Index of the word after the last one."""


def hits(words: Sequence[str]) -> list[Hit]:
    """Return the concepts in a sentence's words, in order; their phrases do not overlap."""
    found: list[Hit] = []
    at = 0
    while at < len(words):
        best = _longest(words, at)
        if best is None:
            at += 1
            continue
        phrase, concept = best
        found.append(Hit(concept, at, at + len(phrase)))
        at += len(phrase)
    return found


def _longest(words: Sequence[str], at: int) -> Phrase | None:
    for phrase, concept in _BY_WORD.get(words[at], ()):
        if _matches(phrase, words[at : at + len(phrase)]):
            return phrase, concept
    stems = (entry for entry in _STEMS if words[at].startswith(entry[0][0][:-1]))
    return max(stems, key=lambda entry: len(entry[0][0]), default=None)


def _matches(phrase: Sequence[str], words: Sequence[str]) -> bool:
    if len(words) < len(phrase) or tuple(words[:-1]) != tuple(phrase[:-1]):
        return False
    last = phrase[-1]
    return words[-1].startswith(last[:-1]) if last.endswith(_STOP) else words[-1] == last


def _phrases() -> list[Phrase]:
    found: dict[tuple[str, ...], Concept] = {}
    for concept, text in LEXICON.items():
        for phrase in text.split("|"):
            found.setdefault(tuple(phrase.split()), concept)
    return sorted(found.items(), key=lambda entry: -len(entry[0]))


def _is_stem(phrase: Sequence[str]) -> bool:
    return len(phrase) == 1 and phrase[0].endswith(_STOP)


def _by_word() -> dict[str, list[Phrase]]:
    index: dict[str, list[Phrase]] = {}
    for phrase, concept in _phrases():
        if not _is_stem(phrase):
            index.setdefault(phrase[0], []).append((phrase, concept))
    return index


_BY_WORD: Final = _by_word()
"""Phrases by their first word, the longest first."""
_STEMS: Final = tuple(entry for entry in _phrases() if _is_stem(entry[0]))
"""Single words with an open ending."""
